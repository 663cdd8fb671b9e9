"""The page at `/`, in a real browser, on sandboxes of this machine."""

import gzip
import re

import pytest
import requests

from browser import Browser
from local_server import LocalServer
from page_driver import Page
from server import wait_until

DELIVERED = 300_000  # bytes of all its files together
OPTIONS = ["--preview-mode", "proxy", "--preview-domain", "localhost", "--reap-every", "1"]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    server = LocalServer(None, tmp_path_factory.mktemp("page"), OPTIONS).start()
    yield server
    server.stop()
    server.end_boxes()


@pytest.fixture
def server(cloud):
    yield cloud
    if cloud.process.poll() is not None:
        cloud.start()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    one = Browser(tmp_path_factory.mktemp("browser"), (1280, 860))
    yield one
    one.close()


@pytest.fixture
def page(browser, server):
    one = Page(browser, f"{server.url}/")
    yield one
    complaints = one.complaints()
    one.browser.call("Page.navigate", url="about:blank")
    assert complaints == []


# --- how it is delivered ------------------------------------------------------------------------------
def fetch(server, path, **headers):
    return requests.get(server.url + path, headers={"Accept-Encoding": "gzip", **headers}, timeout=30, stream=True)


def parts(server):
    """Every file that the page is made of: those that it names, and those that these name."""
    found, left = {}, ["/"]
    while left:
        path = left.pop()
        if path in found:
            continue
        answer = fetch(server, path)
        assert answer.status_code == 200, path
        found[path] = answer.raw.read(decode_content=False)
        text = gzip.decompress(found[path]).decode()
        if path == "/":
            left += [f"/{name}" for name in re.findall(r'(?:href|src)="(page/[^"]+)"', text)]
        elif path.endswith(".js"):
            left += [f"/page/{name}" for name in re.findall(r'(?:from |import\()"\./([^"]+)"', text)]
    return found


def test_its_size_and_headers(server):
    files = parts(server)
    assert "/page/xterm.mjs" in files and "/page/style.css" in files and len(files) > 10
    size = sum(map(len, files.values()))
    assert size < DELIVERED
    for path in files:
        headers = fetch(server, path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
        assert headers["Content-Encoding"] == "gzip" and headers["Vary"] == "Accept-Encoding" and headers["Cache-Control"] == "no-cache"


def test_it_is_asked_for_again_by_its_etag(server):
    for path, type in (("/", "text/html"), ("/page/main.js", "text/javascript"), ("/page/style.css", "text/css"), ("/page/xterm.mjs", "text/javascript")):
        packed, plain = fetch(server, path), requests.get(server.url + path, headers={"Accept-Encoding": "identity"}, timeout=30)
        assert packed.headers["Content-Type"].startswith(type) and "Content-Encoding" not in plain.headers
        assert packed.content == plain.content and packed.headers["ETag"] != plain.headers["ETag"]
        for refusing in ("gzip;q=0", "gzip;q=0.0, br", "br"):
            assert "Content-Encoding" not in fetch(server, path, **{"Accept-Encoding": refusing}).headers
        for taking in ("br, gzip;q=0.5", "deflate,GZIP"):
            assert fetch(server, path, **{"Accept-Encoding": taking}).headers["Content-Encoding"] == "gzip"
        again = fetch(server, path, **{"If-None-Match": f'"other", {packed.headers["ETag"]}'})
        assert again.status_code == 304 and again.headers["ETag"] == packed.headers["ETag"] and again.raw.read() == b""
        assert fetch(server, path, **{"If-None-Match": plain.headers["ETag"]}).status_code == 200
        head = requests.head(server.url + path, headers={"Accept-Encoding": "identity"}, timeout=30)
        assert head.headers["Content-Length"] == str(len(plain.content))


def test_what_it_has_not(server, client):
    for name in ("none.js", "LICENSE", "README.md", "%2e%2e%2fmain.js"):
        assert client.request("GET", f"/page/{name}").status_code in (400, 404)
    client.problem("POST", "/", 405)
    answer = requests.get(server.url, headers={"Host": "elsewhere.example"}, timeout=30)
    assert answer.status_code == 421  # without keys, to this machine alone


# --- sandboxes -------------------------------------------------------------------------------------------
def test_make_and_delete_one(page, client):
    page.expected.add(400)
    page.see("No sandbox yet")
    page.click("button", "New sandbox")
    page.fill("textbox", "Name", "Not A Name")
    page.click("button", "Create")
    page.see("invalid_field")
    page.fill("textbox", "Name", "made-here")
    page.fill("textbox", "Memory", "256Mi")
    page.fill("textbox", "Environment", "GREETING=hello there")
    page.click("button", "Create")
    page.see("made-here", "running", "256 MiB")
    record = client.sandbox("made-here")
    assert record["resources"]["memory"] == "256Mi" and record["ttl"] == 3600
    assert client.exec("made-here", "echo $GREETING")["stdout"] == "hello there\n"

    page.click("button", "Delete")
    page.key("Escape")
    assert client.sandbox("made-here")["state"] == "running"
    page.click("button", "Delete")
    page.click("button", "Delete sandbox")
    page.see("No sandbox yet")
    assert client.problem("GET", "/v1/sandboxes/made-here", 410)["reason"] == "deleted"


def test_the_list_is_live(page, client):
    page.expected.add(410)  # its usage is asked for while it goes
    page.see("No sandbox yet")
    client.create("first", labels={"team": "red"})
    page.see("first", "team=red")
    client.create("second")
    page.see("second", "2 running")
    page.fill("searchbox", "Filter by id, label, image or owner", "red")
    page.see_no_more("second")
    page.key("Escape")
    page.see("second")
    client.delete("first")
    page.see_no_more("first")
    page.click("button", "Ended")
    page.see("first", "deleted")
    client.delete("second")
    page.see("second")
