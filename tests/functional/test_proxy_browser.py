"""A preview in a real browser, at http://ID.localhost:PORT/."""

from pathlib import Path

import pytest

from browser import Browser

OPTIONS = ("--preview-mode", "proxy", "--preview-domain", "localhost", "--reap-every", "1")
APP = Path(__file__).with_name("vite_app.py").read_bytes()


@pytest.fixture
def browser(tmp_path):
    one = Browser(tmp_path)
    yield one
    one.close()


def test_a_page_that_reloads_on_change(server, client, browser, tmp_path):
    client.create("live")
    client.put("live", "app.py", APP)
    client.put("live", "content.txt", b"first version")
    made = client.post("/v1/sandboxes/live/previews", {"port": 5173, "command": ["python3", "app.py", "5173"], "visibility": "private"}, 201)
    assert made["url"] == f"http://live.localhost:{server.port}/"

    browser.call("Page.navigate", url=made["url"])
    browser.wait("document.body.innerText.includes('private')", True)  # not without a link
    link = client.post("/v1/sandboxes/live/previews/5173/links", {"ttl": 600}, 201)["url"]
    browser.call("Page.navigate", url=link)
    browser.wait("document.getElementById('state')?.textContent", "connected")
    assert browser.text("content") == "first version" and browser.value("location.href") == made["url"]
    assert browser.value("document.cookie") == ""  # scripts do not see ours

    client.put("live", "content.txt", b"second version")
    browser.wait("document.getElementById('content')?.textContent", "second version")
    browser.wait("document.getElementById('state')?.textContent", "connected")
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 1000

    client.request("DELETE", "/v1/sandboxes/live/previews/5173", 204)
    client.post("/v1/sandboxes/live/previews", {"port": 5173, "wait": False}, 201)
    browser.call("Page.navigate", url=made["url"])
    browser.wait("document.body.innerText.includes('looks again')", True)
    client.start("live", "python3 app.py 5173")  # the page finds it by itself
    browser.wait("document.getElementById('content')?.textContent", "second version")
    client.delete("live")


def test_pages_cannot_call_the_api(server, client, browser):
    client.create("live")
    client.put("live", "app.py", APP)
    client.put("live", "content.txt", b"evil")
    made = client.post("/v1/sandboxes/live/previews", {"port": 5173, "command": ["python3", "app.py", "5173"]}, 201)
    browser.call("Page.navigate", url=made["url"])
    browser.wait("document.getElementById('content')?.textContent", "evil")
    browser.value(f"fetch('{server.url}/v1/sandboxes').then(r => r.text(), e => 'refused').then(t => window.got = t)")
    browser.wait("window.got", "refused")
    client.delete("live")
