"""A preview in a real browser, at http://ID.localhost:PORT/."""

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import requests
from websockets.sync.client import connect

from server import wait_until

OPTIONS = ("--preview-mode", "proxy", "--preview-domain", "localhost", "--reap-every", "1")
APP = Path(__file__).with_name("vite_app.py").read_bytes()
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--no-proxy-server", "--window-size=800,400", "--remote-debugging-port=0")


class Browser:
    """One page, driven over the DevTools protocol."""

    def __init__(self, directory):
        self.log = open(directory / "chromium.log", "w+")
        self.process = subprocess.Popen([shutil.which("chromium"), *FLAGS, f"--user-data-dir={directory / 'profile'}", "about:blank"],
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        port = wait_until(lambda: re.search(r"DevTools listening on ws://127.0.0.1:(\d+)/", self.said()), 60, "the browser")[1]
        page = next(target for target in requests.get(f"http://127.0.0.1:{port}/json", timeout=10).json() if target["type"] == "page")
        self.socket = connect(page["webSocketDebuggerUrl"], max_size=None)
        self.number = 0

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while (answer := json.loads(self.socket.recv(60))).get("id") != self.number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def value(self, script):
        return self.call("Runtime.evaluate", expression=script)["result"].get("value")

    def text(self, id):
        return self.value(f"document.getElementById('{id}')?.textContent")

    def wait(self, script, want):
        wait_until(lambda: self.value(script) == want, 30, f"{script} being {want!r}, not {self.value(script)!r},")

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait()
        self.log.close()


@pytest.fixture
def browser(tmp_path):
    assert shutil.which("chromium"), "chromium is missing (apt-get install chromium)"
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
