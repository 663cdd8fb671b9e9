"""Previews that the server itself serves, with a program that says what it got."""

import base64
import hashlib
import json
import os
import socket
import time
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from urllib.parse import quote

import pytest
import requests
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as open_websocket

from server import raw_request, reset, sanitized, wait_until

OPTIONS = ("--preview-mode", "proxy", "--preview-domain", "localhost", "--reap-every", "1")
APP = Path(__file__).with_name("proxy_app.py").read_bytes()
MIB = 1 << 20


def preview(client, box, expect=201, **body):
    body.setdefault("port", 8000)
    return client.request("POST", f"/v1/sandboxes/{box}/previews", expect, json=body).json()


def start_app(client, box, port=8000, **body):
    client.put(box, "app.py", APP)
    return preview(client, box, command=["python3", "app.py", str(port)], port=port, **body)


@pytest.fixture(scope="module")
def shared(cloud):
    """One sandbox with the program, for the tests that leave it as it was."""
    client = cloud.client()
    client.create("web")
    start_app(client, "web")
    yield "web"
    client.delete("web", expect=(202, 204, 410))


@pytest.fixture
def box(client):
    client.create("own")
    start_app(client, "own")
    yield "own"
    client.delete("own", expect=(202, 204, 410))


class Site:
    """A browser's view of a preview."""

    def __init__(self, server, name):
        self.server, self.host = server, f"{name}.localhost:{server.port}"
        self.session = requests.Session()
        self.session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # only those that a test gives

    def request(self, method, path="/", expect=200, headers=None, **options):
        response = self.session.request(method, f"http://127.0.0.1:{self.server.port}{path}",
                                        headers={"Host": self.host, **(headers or {})}, timeout=60, allow_redirects=False, **options)
        assert expect is None or response.status_code == expect, (response.status_code, response.text[:2000])
        return response

    def get(self, path="/", expect=200, **options):
        return self.request("GET", path, expect, **options)

    def echo(self, method="GET", path="/echo", **options):
        said = self.request(method, path, **options).json()
        said["fields"] = {name.lower(): value for name, value in said["headers"]}
        return said

    def socket(self, data=b""):
        sock = socket.create_connection(("127.0.0.1", self.server.port), timeout=30)
        sock.sendall(data)
        return sock

    def raw(self, head, body=b""):
        """One request as it stands, answered until the server closes."""
        return raw_request(self.server.port, head.format(host=self.host).replace("\n", "\r\n").encode("latin-1") + body, 10)[0]


@pytest.fixture
def site(server, shared):
    return Site(server, shared)


def read_until(sock, end):
    data = b""
    while end not in data:
        piece = sock.recv(65536)
        assert piece, data
        data += piece
    return data


# --- what is said and passed on ------------------------------------------------------------------
def test_a_preview(server, client, site):
    item = client.get("/v1/sandboxes/web/previews")["items"][0]
    assert item["url"] == f"http://web.localhost:{server.port}/" and item["state"] == "ready" and item["host"] == "web.localhost"
    assert item["service"] is None and item["ingress"] is None and item["visibility"] == "public"
    said = site.echo()
    assert said["method"] == "GET" and said["target"] == "/echo" and said["fields"]["host"] == f"web.localhost:{server.port}"
    assert "content-length" not in said["fields"] and "connection" not in said["fields"]


def test_nothing_is_made_in_the_cluster(api, site):
    assert {kind for kind, _ in api.sandbox_objects("web")} == {"pods"}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND", "QUERY"])
def test_any_method(site, method):
    assert site.echo(method, data=b"body")["size"] == 4
    assert site.echo(method)["method"] == method


@pytest.mark.parametrize("target", ["/", "/a//b", "//", "/%2F%2e%2e/../x/./y", "/a?b?c=%00&d", "/?", "/%zz", "/a;b=c,d", "/a|b\"<>", "/" + "x" * 8000])
def test_the_target_is_passed_as_it_stands(site, target):
    answer = site.raw(f"GET {target} HTTP/1.1\nHost: {{host}}\nConnection: close\n\n")
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["target"] == target


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("query,length", [("", None), ("?length=123", b"123")], ids=["without", "with"])
def test_not_modified_is_no_empty_document(site, method, query, length):
    """A length is that of the document, if the program says it; never 0, and never a coding. Nothing follows the head."""
    unchanged = f"{method} /unchanged{query} HTTP/1.1\nHost: {{host}}\nConnection: close\n\n"
    head, body = site.raw(unchanged).split(b"\r\n\r\n", 1)
    fields = {name.lower(): value for name, value in (line.split(b": ", 1) for line in head.split(b"\r\n")[1:])}
    assert head.startswith(b"HTTP/1.1 304 ") and fields[b"etag"] == b'"1"' and body == b"", (head, body)
    assert fields.get(b"content-length") == length and b"transfer-encoding" not in fields, head
    site.get(f"/unchanged{query}", 304)
    assert site.echo()["method"] == "GET"  # on whatever connection


def test_forwarded_headers_replace_those_of_the_client(site):
    fields = site.echo(headers={"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil", "Forwarded": "for=6.6.6.6",
                                "X-Forwarded-Port": "1", "X-Forwarded-User": "root"})["headers"]
    forwarded = {name: value for name, value in fields if "forwarded" in name.lower()}
    assert forwarded == {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": site.host}


def test_headers_of_the_connection_stay(site):
    answer = site.raw("GET /echo HTTP/1.1\nHost: {host}\nConnection: close, X-Mine, Host\nKeep-Alive: 5\nTE: trailers\nTrailer: x\n"
                      "Proxy-Connection: x\nProxy-Authorization: x\nX-Mine: secret\nX-Other: kept\n\n")
    fields = {name.lower() for name, _ in json.loads(answer.split(b"\r\n\r\n", 1)[1])["headers"]}
    assert "x-other" in fields and "host" in fields
    assert not fields & {"connection", "keep-alive", "te", "trailer", "proxy-connection", "proxy-authorization", "x-mine"}


def test_the_programs_headers_come_as_they_are(site):
    answer = (b"HTTP/1.1 203 Fine\r\nSet-Cookie: a=1; Path=/\r\nSet-Cookie: b=2; Domain=.localhost; HttpOnly\r\nX-Odd:  spaced\tout \r\nContent-Encoding: gzip\r\n"
              b"Server: mine/1\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nCache-Control: public, max-age=9\r\nX-Request-ID: app\r\n"
              b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08")
    got = site.raw("GET /raw?bytes=" + quote(base64.b64encode(answer), safe="") +
                   " HTTP/1.1\nHost: {host}\nConnection: close\n\n")
    head, body = got.split(b"\r\n\r\n", 1)
    lines = head.split(b"\r\n")
    assert lines[0].startswith(b"HTTP/1.1 203 ") and body == b"\x1f\x8b\x08"
    for line in (b"Set-Cookie: a=1; Path=/", b"Set-Cookie: b=2; HttpOnly", b"X-Odd: spaced out", b"Content-Encoding: gzip", b"Server: mine/1",
                 b"Date: Thu, 01 Jan 1970 00:00:00 GMT", b"Cache-Control: public, max-age=9", b"X-Request-ID: app", b"Content-Length: 3"):
        assert lines.count(line) == 1, (line, lines)
    assert not [line for line in lines if line.lower().startswith((b"x-hop", b"keep-alive", b"x-content-type"))]
    assert len([line for line in lines if line.lower().startswith(b"date")]) == 1


def test_head_and_empty_answers(site):
    response = site.request("HEAD", "/large?size=123456")
    assert response.headers["Content-Length"] == "123456" and response.content == b""
    assert site.request("HEAD", "/echo").content == b""
    assert site.echo()["size"] == 0  # the connection is still in step


def test_big_headers(site):
    said = site.echo(headers={"Cookie": "c=" + "x" * 12000, "X-Other": "y" * 3000})
    assert said["fields"]["cookie"] == "c=" + "x" * 12000 and said["fields"]["x-other"] == "y" * 3000


def check_memory(server, before):
    """Flat, whatever goes through. A sanitizer keeps what was freed."""
    if not sanitized():
        assert server.usage()["rss"] - before < 24 * 1024


# --- bodies --------------------------------------------------------------------------------------
def sha(data):
    return hashlib.sha256(data).hexdigest()


def test_chunked_upload(site):
    pieces = [os.urandom(size) for size in (1, 70000, 3, 500000)]
    said = site.echo("POST", data=iter(pieces))
    assert said["size"] == sum(map(len, pieces)) and said["sha256"] == sha(b"".join(pieces))
    assert said["fields"]["transfer-encoding"] == "chunked" and "content-length" not in said["fields"]
    assert site.echo("POST", data=iter([]))["size"] == 0


def test_64_mib_up(server, site):
    data = os.urandom(64 * MIB)
    before = server.usage()["rss"]
    assert site.echo("PUT", data=data)["sha256"] == sha(data)
    assert site.echo("PUT", data=iter([data[at:at + 100000] for at in range(0, len(data), 100000)]))["sha256"] == sha(data)
    check_memory(server, before)


@pytest.mark.parametrize("how", ["length", "chunks", "end"])
def test_64_mib_down(server, site, how):
    block = hashlib.sha256(b"block").digest() * 2048
    before = server.usage()["rss"]
    digest, size = hashlib.sha256(), 0
    with site.get(f"/large?size={64 * MIB}&as={how}", stream=True) as response:
        for piece in response.iter_content(1 << 20):
            digest.update(piece)
            size += len(piece)
    assert size == 64 * MIB and digest.hexdigest() == sha(block * (64 * MIB // len(block)))
    check_memory(server, before)


def test_a_slow_reader_holds_the_program_and_nobody_else(server, site):
    before = server.usage()["rss"]
    slow = site.socket(f"GET /large?size={256 * MIB} HTTP/1.1\r\nHost: {site.host}\r\n\r\n".encode())
    slow.recv(1000)
    for _ in range(20):
        assert site.echo()["method"] == "GET"
    check_memory(server, before)
    reset(slow)


def test_expect_continue(site):
    sock = site.socket(f"POST /echo HTTP/1.1\r\nHost: {site.host}\r\nContent-Length: 5\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n".encode())
    assert read_until(sock, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
    sock.sendall(b"12345")
    answer = read_until(sock, b"}")
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["size"] == 5


def test_an_answer_before_the_body_is_read(site):
    assert site.request("POST", "/early", 413, data=b"x" * 4 * MIB).text == "too large"


def test_an_answer_that_begins_before_the_body_ends(site):
    assert site.request("POST", "/wait", data=b"x" * 4 * MIB).text == str(4 * MIB)


def test_events_arrive_at_once(server, site):
    other = Site(server, "web")
    with site.get("/events", stream=True) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        pieces = response.iter_content(None)
        for number in range(3):
            assert next(pieces) == b"data: %d\n\n" % number  # the next one is not even made yet
            assert other.get("/release").text == "released"
        assert next(pieces, None) is None


# --- connections ---------------------------------------------------------------------------------
def test_connections_to_the_program_are_kept(site):
    numbers = {site.echo()["connection"] for _ in range(20)}
    assert len(numbers) == 1, numbers


def test_a_kept_connection_that_the_program_has_closed(client, site):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    path = "/raw?bytes=" + quote(base64.b64encode(answer), safe="")
    for _ in range(30):  # says that it will keep the connection, and closes it
        assert site.get(path).text == "ok"


def test_pipelined_requests(site):
    request = f"GET /echo?{{}} HTTP/1.1\r\nHost: {site.host}\r\n\r\n"
    sock = site.socket("".join(request.format(number) for number in range(5)).encode())
    data = b""
    while data.count(b"sha256") < 5:
        data += sock.recv(65536)
    assert [data.index(b"/echo?%d\"" % number) for number in range(5)] == sorted(data.index(b"/echo?%d\"" % number) for number in range(5))


def test_two_hundred_at_once(server, site):
    socks = [site.socket(f"GET /echo?{number} HTTP/1.1\r\nHost: {site.host}\r\n\r\n".encode()) for number in range(200)]
    for number, sock in enumerate(socks):
        assert json.loads(read_until(sock, b"}").split(b"\r\n\r\n", 1)[1])["target"] == f"/echo?{number}"
        sock.close()


def test_two_hundred_waiting_cost_no_thread(server, site):
    threads = server.usage()["threads"]
    socks = [site.socket(f"GET /hang HTTP/1.1\r\nHost: {site.host}\r\n\r\n".encode()) for _ in range(200)]
    assert site.echo()["method"] == "GET"
    assert server.usage()["threads"] == threads
    for sock in socks:
        reset(sock)
    assert site.echo()["method"] == "GET"


def test_http_1_0(site):
    answer = site.raw("GET /large?size=5&as=chunks HTTP/1.0\nHost: {host}\n\n")
    head, body = answer.split(b"\r\n\r\n", 1)
    assert len(body) == 5 and b"chunked" not in head


# --- WebSocket -----------------------------------------------------------------------------------
def connect(site, path="/ws?token=a%2Fb&x", **options):
    sock = socket.create_connection(("127.0.0.1", site.server.port), timeout=30)
    return open_websocket(f"ws://{site.host}{path}", sock=sock, max_size=None, compression=None, **options)


def test_b57_websocket(site):
    with connect(site, subprotocols=["vite-hmr", "other"]) as socket_:
        hello = json.loads(socket_.recv())
        fields = {name.lower(): value for name, value in hello["headers"]}
        assert hello["target"] == "/ws?token=a%2Fb&x" and socket_.subprotocol == "vite-hmr"
        assert fields["upgrade"] == "websocket" and fields["connection"].lower() == "upgrade"
        assert fields["x-forwarded-for"] == "127.0.0.1"
        socket_.send("text")
        assert socket_.recv() == "text"
        for size in (1, 125, 126, 65535, 65536, 3 * MIB):
            data = os.urandom(size)
            socket_.send(data)
            assert socket_.recv() == data
        socket_.send("close please")
        with pytest.raises(ConnectionClosed) as closed:
            socket_.recv()
        assert closed.value.rcvd.code == 4001 and closed.value.rcvd.reason == "as you wish"


def test_b16_nothing_is_lost_around_the_upgrade(site):
    """The program's first frame comes with its head; the client's first frame with its request."""
    for _ in range(50):
        sock = site.socket(f"GET /ws HTTP/1.1\r\nHost: {site.host}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
                           "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode() +
                           b"\x81\x85\x00\x00\x00\x00early")
        data = read_until(sock, b"\x81\x05early")
        assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in data and b'"target": "/ws"' in data
        sock.close()


def test_a_refused_upgrade(site):
    answer = site.raw("GET /ws HTTP/1.1\nHost: {host}\nConnection: Upgrade\nUpgrade: websocket\n\n")
    assert answer.startswith(b"HTTP/1.1 426 ") and answer.endswith(b"upgrade, please"), answer


def test_many_websockets_and_none_is_left(server, site):
    before = server.usage()
    sockets = [connect(site) for _ in range(100)]
    for number, one in enumerate(sockets):
        one.recv()
        one.send(str(number))
    assert [one.recv() for one in sockets] == [str(number) for number in range(100)]
    assert server.usage()["threads"] == before["threads"]
    for one in sockets[:50]:
        one.close()
    for one in sockets[50:]:
        reset(one.socket)
    wait_until(lambda: server.usage()["fds"] <= before["fds"] + 2, what="closed sockets")


def test_websockets_end_with_the_server(fresh):
    one = fresh(*OPTIONS).start()
    client = one.client()
    client.create("web")
    start_app(client, "web")
    sockets = [connect(Site(one, "web")) for _ in range(5)]
    for each in sockets:
        each.recv()
    began = time.monotonic()
    one.stop()
    assert time.monotonic() - began < 20
    for each in sockets:
        with pytest.raises((ConnectionClosed, EOFError, OSError)):
            each.recv(timeout=10)


# --- failures ------------------------------------------------------------------------------------
def test_a_port_that_is_not_open(server, client, site):
    client.create("bare")
    preview(client, "bare", wait=False)
    bare = Site(server, "bare")
    page = bare.get("/x", 503, headers={"Accept": "text/html,*/*"})
    assert 'http-equiv="refresh"' in page.text and "8000" in page.text and page.headers["Content-Type"].startswith("text/html")
    problem = bare.get("/x", 503).json()
    assert problem["code"] == "port_closed" and problem["retryable"]
    assert bare.request("POST", "/x", 503, data=b"x" * MIB).json()["code"] == "port_closed"
    client.put("bare", "app.py", APP)
    client.exec("bare", "python3 app.py 8000 >/dev/null 2>&1 &")
    wait_until(lambda: bare.get("/echo", None).status_code == 200, what="the program")
    client.delete("bare")


def test_unknown_hosts(site, server):
    nobody = Site(server, "nobody")
    assert nobody.get("/", 404).json()["code"] == "not_found"
    assert "nobody.localhost" in nobody.get("/", 404, headers={"Accept": "text/html"}).text
    assert nobody.get("/v1/sandboxes", 404).json()["code"] == "not_found"  # the API is not there


@pytest.mark.parametrize("host", ["web.localhost.evil", "web.localhost.evil:80", "evil", "xweb.localhostx", "web.localhost:evil"])
def test_spoofed_hosts_are_not_previews(site, host):
    answer = site.raw(f"GET /v1/sandboxes HTTP/1.1\nHost: {host}\nConnection: close\n\n")
    assert answer.startswith(b"HTTP/1.1 421 "), answer


@pytest.mark.parametrize("host", ["user@web.localhost", "a.web.localhost", "web.localhost@web.localhost", "'web'.localhost", "%77eb.localhost"])
def test_odd_hosts_below_the_domain_are_nobodys(site, host):
    answer = site.raw(f"GET / HTTP/1.1\nHost: {host}\nConnection: close\n\n")
    assert answer.startswith(b"HTTP/1.1 404 "), answer


@pytest.mark.parametrize("host", ["WEB.LocalHost", "web.localhost.", "web.localhost:1", "web.localhost.:65535", "web.localhost:"])
def test_other_spellings_of_the_host(site, host):
    assert site.raw(f"GET /echo HTTP/1.1\nHost: {host}\nConnection: close\n\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("bytes_", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
                                    b"HTTP/1.1 200 OK\r\nA B: c\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", b"HTTP/2 200\r\n\r\n",
                                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
                                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
                                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
                                    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                                    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
                                    b"HTTP/1.1 200 OK\rXContent-Length: 0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\rX", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n",
                                    b"HTTP/1.1 200 OK\r\nX-Half"])
def test_what_is_not_an_answer(site, bytes_):
    assert site.get("/raw?bytes=" + quote(base64.b64encode(bytes_), safe=""), 502).json()["code"] == "bad_answer"


@pytest.mark.parametrize("bytes_", [b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
                                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX",
                                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
                                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n",
                                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"])
def test_an_answer_that_is_cut_is_never_whole(site, bytes_):
    with pytest.raises(requests.RequestException):
        site.get("/raw?bytes=" + quote(base64.b64encode(bytes_), safe=""))


@pytest.mark.parametrize("head,status", [("HTTP/1.1 200 OK\nX-Given: yes\n\n", 200), ("HTTP/1.0 299\r\nX-Given: yes\r\n\r\n", 299),
                                         ("HTTP/1.1 999 Odd\r\nContent-Length: 5\r\nx-given:yes \r\n\r\n", 999)])
def test_odd_answers_are_served(site, head, status):
    answer = site.get("/raw?bytes=" + quote(base64.b64encode(head.encode() + b"hello"), safe=""), status)
    assert (answer.text, answer.headers["X-Given"]) == ("hello", "yes")


def test_interim_answers_are_skipped(site):
    answer = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    assert site.get("/raw?bytes=" + quote(base64.b64encode(answer), safe="")).text == "ok"


def test_a_flood_of_interim_answers_ends(site):
    assert site.get("/interim?count=1000").text == "ok"
    assert "interim" in site.get("/interim?count=1001", 502, headers={"Accept": "application/json"}).text
    site.get("/interim?count=0", 502)
    site.echo()


def test_the_program_dies_in_the_middle(server, client, box):
    own = Site(server, "own")
    with pytest.raises(requests.RequestException):
        own.get("/cut")
    with pytest.raises(requests.RequestException):
        own.get("/die")
    wait_until(lambda: own.get("/echo", None).status_code == 503, what="the refusal")


def test_the_sandbox_is_deleted_during_a_transfer(server, client, box):
    own = Site(server, "own")
    down = own.socket(f"GET /large?size={1 << 40} HTTP/1.1\r\nHost: {own.host}\r\n\r\n".encode())
    up = own.socket(f"POST /deaf HTTP/1.1\r\nHost: {own.host}\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
    hang = own.socket(f"GET /hang HTTP/1.1\r\nHost: {own.host}\r\n\r\n".encode())
    down.recv(1000)
    client.delete("own")
    down.settimeout(20)
    with pytest.raises((ConnectionError, EOFError)):
        while True:
            if not down.recv(1 << 20):
                raise EOFError
    assert b" 410 " in read_until(hang, b"\r\n\r\n").split(b"\r\n")[0]
    reset(up)
    page = own.get("/", 410, headers={"Accept": "text/html"})
    assert "deleted" in page.text and "refresh" not in page.text
    assert own.get("/", 410).json()["code"] == "gone"


def test_clients_that_leave_cost_nothing(server, site):
    site.echo()
    before = server.usage()
    for number in range(60):
        path = ("/hang", f"/large?size={1 << 30}", "/events")[number % 3]
        sock = site.socket(f"GET {path} HTTP/1.1\r\nHost: {site.host}\r\n\r\n".encode())
        if number % 3:
            sock.recv(100)
        reset(sock)
    for _ in range(20):
        sock = site.socket(f"POST /echo HTTP/1.1\r\nHost: {site.host}\r\nContent-Length: 1000000\r\n\r\nabc".encode())
        reset(sock)
    wait_until(lambda: server.usage()["fds"] <= before["fds"], what="closed connections")
    assert site.echo()["method"] == "GET"


def test_a_restart_of_the_server(server, client, site):
    hang = site.socket(f"GET /hang HTTP/1.1\r\nHost: {site.host}\r\n\r\n".encode())
    began = time.monotonic()
    server.restart()
    assert time.monotonic() - began < 20  # not for as long as the program likes
    assert hang.recv(100).startswith(b"HTTP/1.1 503 ")
    client.wait_state("web", "running")
    assert site.echo()["method"] == "GET"
    items = client.get("/v1/sandboxes/web/previews")["items"]
    assert [(item["url"], item["state"]) for item in items] == [(f"http://web.localhost:{server.port}/", "ready")]


# --- several, and the rules of names -------------------------------------------------------------
def test_further_ports_and_names(server, client, box):
    second = start_app(client, "own", port=8001)
    third = start_app(client, "own", port=8002, subdomain="shop")
    assert second["host"] == "8001-own.localhost" and third["host"] == "shop.localhost"
    for name in ("own", "8001-own", "shop"):
        assert Site(server, name).echo()["fields"]["host"].startswith(name + ".")
    client.create("other")
    client.problem("POST", "/v1/sandboxes/other/previews", 409, "host_taken", json={"port": 8000, "subdomain": "shop"})
    client.delete("other")
    client.request("DELETE", "/v1/sandboxes/own/previews/8002", 204)
    Site(server, "shop").get("/", 404)
    assert Site(server, "own").echo()["method"] == "GET"


def test_credentials_without_keys_are_the_programs(site):
    fields = site.echo(headers={"Authorization": "Bearer anything", "Cookie": "session=1; podsandbox-preview=x; other=2", "X-API-Key": "k"})["fields"]
    assert fields["authorization"] == "Bearer anything" and fields["cookie"] == "session=1; other=2" and "x-api-key" not in fields
    assert "cookie" not in site.echo(headers={"Cookie": "podsandbox-preview=x"})["fields"]


def test_b56_pages_of_a_preview_may_not_call_the_api(server, site):
    response = requests.get(server.url + "/v1/sandboxes", headers={"Origin": f"http://{site.host}"}, timeout=10)
    assert response.status_code == 403 and not [name for name in response.headers if name.lower().startswith("access-control")]


def test_keys_of_the_api_never_reach_the_program(fresh):
    one = fresh(*OPTIONS, keys={"key-of-anna": ("anna", "user")}).start()
    client = one.client("key-of-anna")
    client.create("web")
    start_app(client, "web")
    site = Site(one, "web")
    assert "authorization" not in site.echo(headers={"Authorization": "Bearer key-of-anna"})["fields"]
    assert "authorization" not in site.echo(headers={"Authorization": "bearer   key-of-anna"})["fields"]
    assert site.echo(headers={"Authorization": "Bearer of-the-app"})["fields"]["authorization"] == "Bearer of-the-app"
    assert site.echo(headers={"Authorization": "Basic eDp5"})["fields"]["authorization"] == "Basic eDp5"
    for others in ("Basic eDp5", "Bearer of-the-app"):  # programs differ in which of two they look at
        answer = site.raw(f"GET /echo HTTP/1.1\nHost: {{host}}\nConnection: close\nAuthorization: {others}\n"
                          "Authorization: Bearer key-of-anna\n\n")
        assert b"200 OK" in answer and b"key-of-anna" not in answer
    assert "key-of-anna" not in one.log()


def test_a_method_is_a_token(site):
    assert site.raw("GE\x01T /echo HTTP/1.1\nHost: {host}\n\n").startswith(b"HTTP/1.1 400 ")


def test_modes(fresh):
    one = fresh("--preview-mode", "odd")
    one.spawn().process.wait(20)
    assert "must be one of auto|substrate|proxy" in one.log()
