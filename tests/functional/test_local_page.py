"""The page at `/`, in a real browser, on sandboxes of this machine."""

import gzip
import re
import tarfile

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
    one.value("localStorage.clear()")
    one.browser.call("Emulation.clearDeviceMetricsOverride")
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


def test_one_that_ends_while_it_is_looked_at(page, client):
    page.expected.add(404)
    client.create("watched")
    page.go("/sandboxes/watched/files")
    page.see("watched", "running", "/workspace")
    client.exec("watched", "echo was here", detach=True, expect=202)
    client.delete("watched")
    page.see("gone", "Gone: deleted")
    page.click("tab", "Events")
    page.see("created", "gone")
    page.click("tab", "Commands")
    page.see("echo was here")
    assert page.value("document.getElementById('tab-files').disabled") is True
    page.go("/sandboxes/never-was")
    page.see("there is no sandbox 'never-was'", "not_found")
    page.click("link", "All sandboxes")
    page.see("No sandbox yet")


def test_its_life_is_extended(page, client):
    client.create("short", ttl=600)
    page.go("/sandboxes/short/about")
    page.see("ends in 9 min")
    page.click("button", "Extend")
    page.fill("spinbutton", "Minutes from now", "180")
    page.key("Enter")
    page.see("ends in 2 h 59 min")
    assert client.sandbox("short")["ttl"] == 10800
    client.delete("short")


# --- files ------------------------------------------------------------------------------------------------
def test_files(page, client, tmp_path):
    client.create("files")
    client.put("files", "src/main.py", b"print('one')\n")
    client.put("files", "src/windows.txt", b"a\r\nb\r\n")
    client.put("files", "blob.bin", bytes(range(256)))
    page.go("/sandboxes/files/files")
    page.click("treeitem", "src")
    page.click("treeitem", "main.py")
    page.wait("document.querySelector('.editor')?.value", "print('one')\n")
    page.see("13 B · 0644")
    page.fill("textbox", "Content of main.py", "print('two')\n")
    page.key("s", 2)
    page.see("main.py is saved")
    assert client.read("files", "src/main.py") == b"print('two')\n"

    page.expected.add(412)  # somebody else writes it meanwhile
    client.put("files", "src/main.py", b"print('theirs')\n")
    page.fill("textbox", "Content of main.py", "print('mine')\n")
    page.click("button", "Save")
    page.see("precondition_failed")
    assert client.read("files", "src/main.py") == b"print('theirs')\n"
    page.click("button", "Overwrite")
    wait_until(lambda: client.read("files", "src/main.py") == b"print('mine')\n")
    page.see_no_more("precondition_failed")

    page.click("treeitem", "windows.txt")  # a text box knows one kind of line end only
    page.wait("document.querySelector('.editor')?.value", "a\nb\n")
    page.fill("textbox", "Content of windows.txt", "a\nb\nc\n")
    page.click("button", "Save")
    page.see("windows.txt is saved")
    assert client.read("files", "src/windows.txt") == b"a\r\nb\r\nc\r\n"
    page.click("treeitem", "blob.bin")
    page.see("Not text")

    page.click("button", "New file")
    page.fill("textbox", "Path", "notes/today.md")
    page.key("Enter")
    page.find("textbox", "Content of today.md")
    upload = tmp_path / "from here.txt"
    upload.write_bytes(b"uploaded\n")
    node = page.browser.call("DOM.querySelector", nodeId=page.browser.call("DOM.getDocument", depth=0)["root"]["nodeId"], selector="input[type=file]")
    page.browser.call("DOM.setFileInputFiles", nodeId=node["nodeId"], files=[str(upload)])
    page.see("from here.txt uploaded")
    uploaded = [path for path in client.tree("files", more="&format=paths")["items"] if path.endswith("from here.txt")]
    assert len(uploaded) == 1 and client.read("files", uploaded[0]) == b"uploaded\n"

    page.focus("treeitem", "src")
    page.key("Delete")
    page.see("and all that is in it")
    page.click("button", "Delete")
    page.see_no_more("main.py")
    assert "src/main.py" not in client.tree("files", more="&format=paths")["items"]
    client.delete("files")


def test_a_download(page, client, tmp_path):
    client.create("down")
    client.put("down", "data.bin", bytes(range(256)) * 100)
    page.browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.go("/sandboxes/down/files")
    page.click("treeitem", "data.bin")
    page.click("button", "Download")
    wait_until(lambda: (tmp_path / "data.bin").exists())
    assert (tmp_path / "data.bin").read_bytes() == bytes(range(256)) * 100
    client.put("down", "src/a.py", b"a")
    page.click("button", "Read again")
    page.click("treeitem", "src")
    page.click("button", "Download this folder")
    wait_until(lambda: (tmp_path / "down.tar.gz").exists())
    with tarfile.open(tmp_path / "down.tar.gz") as archive:
        assert archive.extractfile("a.py").read() == b"a"
    client.delete("down")


def test_a_masked_file_is_not_saved(page, client):
    client.create("masked", secrets=["s3cr3t-t0ken"])
    client.put("masked", "config", b"token = s3cr3t-t0ken\n")
    page.go("/sandboxes/masked/files")
    page.click("treeitem", "config")
    page.see("Secrets in it are masked")
    assert page.value("document.querySelector('.editor').readOnly") is True
    assert "s3cr3t" not in page.value("document.documentElement.outerHTML")
    client.delete("masked")


# --- what is hostile -------------------------------------------------------------------------------------------
EVIL = "<img src=x onerror=alert(1)>"


def test_names_are_text(page, client):
    client.create("hostile", labels={"team": "a-b"}, env={"X": EVIL})
    client.exec("hostile", ["sh", "-c", 'echo "$X"; echo "$X" > "./$X"; mkdir "<b>folder"; touch "./javascript:alert(1)" "$(printf "a\\nb")" "$(printf "\\377")"'])
    page.go("/sandboxes/hostile/files")
    page.see(EVIL, "<b>folder", "javascript:alert(1)", "a\\u000ab")
    page.click("treeitem", EVIL)
    page.wait("document.querySelector('.editor')?.value", EVIL + "\n")
    page.click("treeitem", "\ufffd")
    page.wait("document.querySelector('.editor')?.value", "")
    page.click("tab", "Commands")
    page.press(".command summary")
    page.see(EVIL)
    page.click("tab", "About")
    page.click("tab", "Events")
    assert page.value("document.querySelectorAll('main img, main b').length") == 0
    client.delete("hostile")


def test_a_link_is_an_address_of_the_web(page):
    address = "import('/page/dom.js').then(m => m.pageAddress({!r}))"
    assert page.value(address.format("javascript:alert(1)")) is None and page.value(address.format("data:text/html,x")) is None
    assert page.value(address.format("http://a.localhost:1/")) == "http://a.localhost:1/"


# --- previews, commands -------------------------------------------------------------------------------------
def opens(page, click, url):
    """CLICK opens a tab that comes to URL; it is closed."""
    before = {one["id"] for one in page.browser.targets()}
    click()

    def look():
        new = [one for one in page.browser.targets() if one["type"] == "page" and one["id"] not in before and one["url"] == url]
        return new[0] if new else None
    tab = wait_until(look, what=f"a tab with {url}")
    page.browser.call("Target.closeTarget", targetId=tab["id"])
    page.browser.call("Page.bringToFront")


def test_previews(page, client, server):
    client.create("shown")
    client.put("shown", "index.html", b"<h1>It works</h1>")
    page.go("/sandboxes/shown/previews")
    page.see("Nothing is published")
    page.fill("spinbutton", "Port", "8000")
    page.fill("textbox", "Command, in a shell (optional)", "exec python3 -m http.server 8000")
    page.click("button", "Publish")
    page.see("8000", "ready", "public", f"http://shown.localhost:{server.port}/")
    opens(page, lambda: page.click("button", "Open"), f"http://shown.localhost:{server.port}/")

    page.fill("spinbutton", "Port", "8001")
    page.fill("textbox", "Command, in a shell (optional)", "exec python3 -m http.server 8001")
    page.choose("Visibility", "private")
    page.click("button", "Publish")
    page.see("8001", "private")
    opens(page, lambda: page.press(".preview:nth-child(2) .button.primary"), f"http://8001-shown.localhost:{server.port}/")  # by a link that becomes a cookie
    client.request("DELETE", "/v1/sandboxes/shown/previews/8001", 204)
    page.see_no_more("private,")
    assert server.fetch("shown", client.get("/v1/sandboxes/shown/previews")["items"][0]) == (200, "<h1>It works</h1>")
    page.click("button", "Log")
    page.see("GET / HTTP/1.1")
    page.key("Escape")
    page.click("button", "Take it down")
    page.click("button", "Take down")
    page.see("Nothing is published")
    client.delete("shown")


def test_commands_and_processes(page, client):
    client.create("busy")
    page.go("/sandboxes/busy/commands")
    page.fill("textbox", "Run in a shell", "echo started; exec sleep 1000")
    page.key("Enter")
    page.see("running")
    page.press(".command summary")
    page.see("started")
    page.click("tab", "Processes")
    page.see("sleep 1000")
    page.click("tab", "Commands")
    page.click("button", "End it and all that it has started")
    page.see("SIGTERM")
    client.delete("busy")


def forget_refusals(page):
    """What a browser says when there is no server."""
    page.value("1")  # takes what it has said by now
    page.browser.events[:] = [event for event in page.browser.events if "net::ERR_" not in str(event)]


# --- terminals -----------------------------------------------------------------------------------------------------
def screen(page):
    return page.value("document.querySelector('.xterm-rows')?.innerText.replaceAll('\\u00a0', ' ') ?? ''")


def shows(page, text):
    wait_until(lambda: text in screen(page), 30, lambda: f"{text!r} on the screen {screen(page)!r}")


def line_size(page, mark):
    """What `stty size` says, under a mark of its own."""
    page.type(f"echo {mark} $(stty size) {mark[::-1]}\n")
    pattern = re.compile(rf"^{mark} (\d+) (\d+) {mark[::-1]}", re.M)
    wait_until(lambda: pattern.search(screen(page)), 30, lambda: f"the size on the screen {screen(page)!r}")
    return tuple(map(int, pattern.search(screen(page)).groups()))


def open_terminal(page, id):
    page.go(f"/sandboxes/{id}/terminal")
    page.click("button", "Open a terminal")
    page.wait("document.activeElement.className", "xterm-helper-textarea")
    page.wait("document.querySelector('.terminal-box').dataset.state", "open")


def test_a_terminal(page, client):
    client.create("shell")
    open_terminal(page, "shell")
    page.type("echo $((6*7))-$TERM; KEPT=still-here\n")
    shows(page, "42-xterm-256color")
    page.size(1280, 860)
    rows, columns = line_size(page, "abc")
    page.size(900, 700)
    wait_until(lambda: line_size(page, "def") != (rows, columns) or page.type("clear\n"))
    smaller = line_size(page, "ghi")
    assert smaller[0] < rows and smaller[1] < columns
    page.type("printf '\\033[38;2;250;120;10mtrue\\033[0m\\033[1;3;4mcolour\\033[0m\\n'\n")
    shows(page, "truecolour")
    page.type("printf '\\033[c'; IFS= read -rs -d c answer; echo answered-${#answer}; cat -v\n")  # asks what terminal this is
    wait_until(lambda: re.search(r"^answered-\d+", screen(page), re.M), what="the terminal's answer")

    running = [one for one in client.get("/v1/sandboxes/shell/execs")["items"] if one["state"] == "running"]
    page.reload()
    page.see("Terminal 1")
    shows(page, "truecolour")  # what was there before
    page.wait("document.querySelector('.terminal-box').dataset.state", "open")
    page.type("typed-alone\n")  # what was asked before the reload is not answered into the program
    wait_until(lambda: screen(page).count("typed-alone") == 2)
    assert len(re.findall(r"^typed-alone\s*$", screen(page), re.M)) == 2, screen(page)
    page.key("d", 2)
    page.type("clear; echo $KEPT\n")
    shows(page, "still-here")
    assert [one["id"] for one in client.get("/v1/sandboxes/shell/execs")["items"] if one["state"] == "running"] == [one["id"] for one in running]
    page.key("ArrowUp", 2 | 8)
    assert page.value("document.activeElement.id") == "tab-terminal"
    page.press(".xterm-screen")
    page.type("exit 3\n")
    page.see("Ended with exit code 3")
    page.click("button", "New terminal")
    page.wait("document.querySelector('.terminal-box').dataset.state", "open")
    page.type("echo $KEPT-anew\n")
    shows(page, "-anew")
    page.click("button", "End")
    page.see("Ended by SIG")
    client.delete("shell")


def test_much_output_and_an_interrupt(page, client):
    client.create("loud")
    open_terminal(page, "loud")
    page.type("seq 1 1500000; echo counted-$((1+1))\n")
    shows(page, "counted-2")
    page.type("clear; yes no-end\n")
    shows(page, "no-end")
    page.key("c", 2)
    page.type("clear; echo stopped-$((1+1))\n")
    shows(page, "stopped-2")
    client.delete("loud")


def test_two_at_one_terminal(page, client, server, tmp_path):
    client.create("shared")
    open_terminal(page, "shared")
    page.type("echo from-one\n")
    shows(page, "from-one")
    other = Browser(tmp_path, (1000, 800))
    try:
        second = Page(other, f"{server.url}/")
        second.go("/sandboxes/shared/terminal")
        second.see("Watching: someone else types here")
        shows(second, "from-one")
        second.press(".xterm-screen")
        second.type("echo not-mine\n")
        second.click("button", "Take over")
        page.see("Watching: someone else types here")
        second.wait("document.activeElement.className", "xterm-helper-textarea")
        second.type("echo from-two\n")
        shows(page, "from-two")
        assert "not-mine" not in screen(page)
        assert second.complaints() == []
    finally:
        other.close()
    client.delete("shared")


def test_a_terminal_outlives_the_server(page, client, server):
    client.create("lasting")
    open_terminal(page, "lasting")
    page.type("KEPT=still-here\n")
    shows(page, "KEPT")
    page.expected |= {500, 503}
    server.kill()
    page.see("Reconnecting")
    server.start()
    page.see_no_more("Reconnecting")
    page.wait("document.querySelector('.terminal-box').dataset.state", "open")
    page.press(".xterm-screen")
    page.type("echo $KEPT-$((1+1))\n")
    shows(page, "still-here-2")
    forget_refusals(page)
    client.delete("lasting")


# --- keys ---------------------------------------------------------------------------------------------------------
USERS = {"key-of-alice": ("alice", "user"), "key-of-root": ("root", "admin")}


@pytest.fixture
def keyed(tmp_path):
    server = LocalServer(None, tmp_path / "keyed", OPTIONS, USERS).start()
    yield server
    server.stop()
    server.end_boxes()


def sign_in(page, key):
    page.fill("textbox", "API key", key)
    page.click("button", "Sign in")


def test_keys(keyed, browser, tmp_path):
    alice, root = keyed.client("key-of-alice"), keyed.client("key-of-root")
    page = Page(browser, f"{keyed.url}/")
    page.expected.add(401)
    page.see("This server asks for an API key.")
    sign_in(page, "wrong")
    page.see("unauthenticated")
    sign_in(page, "key-of-alice")
    page.see("No sandbox yet", "alice")
    alice.create("of-alice")
    root.create("of-root")
    page.see("of-alice")
    assert "of-root" not in page.text() and "Owner" not in page.text()
    page.click("link", "of-alice")
    page.see("running")
    page.click("button", "Open a terminal")
    page.wait("document.querySelector('.terminal-box')?.dataset.state", "open")
    page.type("echo $((6*7))-here\n")
    shows(page, "42-here")
    page.reload()  # the key is of the tab
    page.see("of-alice", "running")
    assert page.value("Object.values(localStorage).concat(location.href, document.cookie).join()").count("key-of") == 0
    assert [event for event in browser.events if "key-of" in str(event)] == []
    alice.put("of-alice", "of-alice.txt", b"for alice")
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.go("/sandboxes/of-alice/files")
    page.click("treeitem", "of-alice.txt")
    page.click("button", "Download")
    wait_until(lambda: (tmp_path / "of-alice.txt").exists())
    assert (tmp_path / "of-alice.txt").read_bytes() == b"for alice"

    page.click("button", "Sign out")
    page.see("Signed out")
    assert page.value("sessionStorage.length") == 0
    page.reload()
    sign_in(page, "key-of-root")
    page.see("of-alice", "of-root", "Owner", "admin", "2 running")

    del keyed.keys["key-of-root"]  # the key is taken away while the page is open
    keyed.write_keys()
    page.see("This server asks for an API key.", "unauthenticated")
    assert page.value("sessionStorage.length") == 0 and "key-of" not in keyed.log()
    assert page.complaints() == []
    page.browser.call("Page.navigate", url="about:blank")
    alice.delete("of-alice")


# --- the server's end, the keyboard, small screens ---------------------------------------------------------------------
def test_it_outlives_the_server(page, server, client):
    client.create("survivor")
    page.see("survivor", "Live")
    server.stop()
    page.see("The server does not answer", "Reconnecting")
    page.expected |= {503}
    server.start()
    page.see_no_more("The server does not answer")
    client.create("later")
    page.see("survivor", "later")
    forget_refusals(page)
    client.delete("survivor")
    client.delete("later")


def test_the_keyboard(page, client):
    client.create("aa")
    client.create("bb")
    page.see("aa", "bb")
    page.key("?", 8)
    page.see("Filter the list")
    page.key("Escape")
    page.key("/")
    page.type("bb")
    page.see_no_more("aa")
    page.key("Escape")
    page.see("aa")
    page.key("j")
    assert page.focused() == "bb"  # the newest is the first
    page.key("j")
    page.wait("document.activeElement.textContent", "aa")
    page.key("Enter")
    page.wait("document.querySelector('h1').textContent", "aa")
    page.see("running")
    page.key("2")
    page.wait("document.activeElement.id", "tab-files")
    page.key("ArrowRight")
    page.wait("document.activeElement.id", "tab-previews")
    page.wait("location.hash", "#/sandboxes/aa/previews")
    page.key("Escape")
    page.wait("document.querySelector('h1').textContent", "Sandboxes")
    page.key("n")
    page.wait("document.activeElement.placeholder", "made up without one")
    page.key("Escape")
    page.wait("document.querySelector('dialog') === null")
    dark = page.value("podsandboxTheme.isDark()")
    page.key("t")
    assert page.value("podsandboxTheme.isDark()") is not dark and page.focused() == ("Light theme" if not dark else "Dark theme")
    page.key("t")
    client.delete("aa")
    client.delete("bb")


def test_the_order_of_the_keyboard(page, client):
    client.create("aa")
    page.see("aa", "running")
    seen = []
    for _ in range(9):
        page.key("Tab")
        seen.append(page.focused() or page.value("document.activeElement.tagName"))
        assert page.value("getComputedStyle(document.activeElement).outlineStyle !== 'none' || getComputedStyle(document.activeElement, '::after').outlineStyle !== 'none'"), seen
    names = ["Skip to content", "podsandbox: all sandboxes", "Dark theme", "Shortcuts", "Filter by id, label, image or owner", "Live", "Ended", "New sandbox", "aa"]
    assert seen == names
    page.key("Tab")
    assert page.focused() == "Delete aa"
    page.key("Enter")
    page.wait("document.activeElement.textContent", "Cancel")
    page.key("Escape")
    page.wait("document.activeElement.getAttribute('aria-label')", "Delete aa")  # where it was
    client.delete("aa")


NAMED = {"button", "link", "textbox", "searchbox", "combobox", "spinbutton", "tab", "treeitem", "table", "dialog", "meter", "img", "tablist", "tree"}


def test_everything_has_a_name(page, client):
    client.create("named")
    client.put("named", "src/a.txt", b"a")
    client.post("/v1/sandboxes/named/previews", {"port": 8000, "wait": False}, 201)
    client.start("named", "sleep 1000")

    def check(place):
        nodes = page.browser.call("Accessibility.getFullAXTree")["nodes"]
        found = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"] and node["role"]["value"] in NAMED]
        assert len(found) > 4 and [one for one in found if not one[1].strip()] == [], place
    page.see("named")
    check("list")
    page.key("n")
    page.find("dialog", "New sandbox")
    check("create")
    page.key("Escape")
    for tab, text in (("files", "a.txt"), ("previews", "8000"), ("commands", "sleep 1000"), ("processes", "sleep 1000"), ("events", "created"), ("about", "Uid"), ("terminal", "No terminal")):
        page.go(f"/sandboxes/named/{tab}")
        if tab == "files":
            page.click("treeitem", "src")
            page.click("treeitem", "a.txt")
            page.find("textbox", "Content of a.txt")
        page.see(text)
        check(tab)
    open_terminal(page, "named")
    check("terminal")
    client.delete("named")


def contrast(page, selector):
    """Of an element's text on what lies behind it."""
    page.wait(f"document.querySelector({selector!r}) !== null")
    return page.value("""(() => {
        const canvas = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d", {willReadFrequently: true});
        const rgb = (css) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
        const light = (css) => rgb(css).slice(0, 3).map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        let behind = document.querySelector(SELECTOR), text = light(getComputedStyle(behind).color);
        while (rgb(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
        const ground = light(getComputedStyle(behind).backgroundColor);
        return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
    })()""".replace("SELECTOR", repr(selector)))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read(page, client, scheme):
    client.create("readable", labels={"team": "red"})
    page.scheme(scheme)
    page.see("readable", "running", "team=red")
    for selector in ("h1", ".summary", ".badge.good", ".row-labels", "th", ".row-link", ".button.primary", ".segment[aria-pressed=true]", ".segment[aria-pressed=false]", ".link-state"):
        assert contrast(page, selector) >= 4.5, selector
    page.go("/sandboxes/readable/files")
    page.see("/workspace")
    for selector in (".facts", ".tab[aria-selected=true]", ".tab[aria-selected=false]", ".danger-quiet", ".file .quiet"):
        assert contrast(page, selector) >= 4.5, selector
    client.delete("readable")


@pytest.mark.parametrize("width", [360, 768])
def test_small_screens(page, client, width):
    client.create("a-rather-long-name-on-a-small-screen", labels={"purpose": "a-label-that-is-long-too", "team": "x" * 63})
    page.size(width, 740)
    page.see("a-rather-long-name", "running")
    for place in ("/", *(f"/sandboxes/a-rather-long-name-on-a-small-screen/{tab}" for tab in ("files", "previews", "commands", "processes", "events", "about"))):
        page.go(place)
        page.wait("document.querySelector('main').innerText.includes('running')")
        assert page.value("document.documentElement.scrollWidth <= innerWidth"), place
    client.delete("a-rather-long-name-on-a-small-screen")
