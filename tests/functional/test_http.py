"""Framing, URLs and JSON as hostile clients write them: B11, B12, B13."""

import json
import re
import socket

import pytest
import requests

from server import raw_request, wait_until

EVIL = b"GET /v1/evil HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def box(cloud):
    client = cloud.client()
    client.create("http", ttl=3600)
    return "http"


def statuses(answer):
    """The status of each reply in ANSWER."""
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) [A-Z]", answer)]


def post(*headers, body=b"", version=b"HTTP/1.1", host=b"Host: 127.0.0.1"):
    lines = [b"POST /v1/sandboxes?dry_run=true " + version] + ([host] if host else []) + list(headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


LENGTH = b"Content-Length: %d" % len(EVIL)
CHUNKED = b"Transfer-Encoding: chunked"
JSON = b"Content-Type: application/json"
SMUGGLING = {
    "two lengths": post(b"Content-Length: 0", LENGTH, JSON, body=EVIL),
    "two equal lengths": post(b"Content-Length: 2", b"Content-Length: 2", JSON, body=b"{}" + EVIL),
    "length list": post(b"Content-Length: 2, 2", JSON, body=b"{}" + EVIL),
    "signed length": post(b"Content-Length: +2", JSON, body=b"{}" + EVIL),
    "hex length": post(b"Content-Length: 0x2", JSON, body=b"{}" + EVIL),
    "negative length": post(b"Content-Length: -1", JSON, body=EVIL),
    "empty length": post(b"Content-Length:", JSON, body=EVIL),
    "huge length": post(b"Content-Length: 99999999999999999999", JSON, body=EVIL),
    "space before the colon": post(b"Content-Length : %d" % len(EVIL), JSON, body=EVIL),
    "length and chunked": post(LENGTH, CHUNKED, JSON, body=b"0\r\n\r\n" + EVIL),
    "chunked and length": post(CHUNKED, LENGTH, JSON, body=b"0\r\n\r\n" + EVIL),
    "two codings": post(CHUNKED, CHUNKED, JSON, body=b"0\r\n\r\n" + EVIL),
    "chunked tab": post(b"Transfer-Encoding: chunked\t", LENGTH, JSON, body=b"0\r\n\r\n" + EVIL),
    "xchunked": post(b"Transfer-Encoding: xchunked", JSON, body=b"0\r\n\r\n" + EVIL),
    "gzip, chunked": post(b"Transfer-Encoding: gzip, chunked", JSON, body=b"0\r\n\r\n" + EVIL),
    "identity": post(b"Transfer-Encoding: identity", LENGTH, JSON, body=EVIL),
    "folded coding": post(b"Transfer-Encoding:\r\n chunked", JSON, body=b"0\r\n\r\n" + EVIL),
    "name with a space": post(b"Transfer Encoding: chunked", LENGTH, JSON, body=EVIL),
    "name with a NUL": post(b"X-\0: 1", b"Content-Length: 0", JSON, body=EVIL),
    "chunked in 1.0": post(CHUNKED, JSON, version=b"HTTP/1.0", body=b"0\r\n\r\n" + EVIL),
    "two hosts": post(b"Content-Length: 2", JSON, b"Host: other", body=b"{}" + EVIL),
    "no host": post(b"Content-Length: 2", JSON, host=None, body=b"{}" + EVIL),
    "method with a control character": b"GE\x01T /v1/sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + EVIL,
    "method with a colon": b"X:GET /v1/sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + EVIL,
    "bad chunk size": post(CHUNKED, JSON, body=b"zz\r\n{}\r\n0\r\n\r\n" + EVIL),
    "chunk size too long": post(CHUNKED, JSON, body=b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n" + EVIL),
    "absolute target": b"GET http://evil/v1/sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + EVIL,
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_b11_a_doubtful_frame_is_refused_and_the_connection_closed(server, name):
    answer, closed = raw_request(server.port, SMUGGLING[name], timeout=10)
    assert closed, answer
    codes = statuses(answer)
    # libmicrohttpd writes the head of its own refusals twice
    assert len(set(codes)) <= 1 and all(code in (400, 411, 413, 421, 501) for code in codes), answer
    assert b"/v1/evil" not in answer and b"no such path" not in answer


@pytest.mark.parametrize("request_", [
    post(CHUNKED, JSON, body=b"2\n{}\n0\n\n" + EVIL),
    b"POST /v1/sandboxes?dry_run=true HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 2\nContent-Type: application/json\n\n{}" + EVIL,
], ids=["chunks", "headers"])
def test_b11_bare_line_feeds(server, request_):
    """What libmicrohttpd 0.9.75 cannot be kept from taking: the bytes behind are a request of their own, never hidden."""
    answer, _ = raw_request(server.port, request_, timeout=3)
    assert len(statuses(answer)) <= 2


def test_pipelined_requests_are_answered_in_order(server):
    one = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    two = b"GET /v1/version HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    three = b"GET /v1/nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    answer, closed = raw_request(server.port, one + two + three)
    assert closed and statuses(answer) == [200, 200, 404] and b"\nok\n" in answer.replace(b"\r", b"")


def test_headers_have_a_limit(server):
    answer, closed = raw_request(server.port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 200000 + b"\r\n\r\n")
    assert closed and statuses(answer) in ([431], [413], [400], [])
    answer, closed = raw_request(server.port, b"GET /" + b"a" * 200000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert closed and statuses(answer) in ([414], [431], [400], [])


@pytest.mark.parametrize("size, accepted", [(1000, True), (15500, True), (16500, False), (30000, False)])
@pytest.mark.parametrize("where", ["target", "header", "many headers"])
def test_what_is_too_long_is_a_problem(server, where, size, accepted):
    """Before libmicrohttpd, which has some 35 KiB for a request line and headers, refuses it in words of its own."""
    target, headers = b"/healthz", b""
    if where == "target":
        target = b"/v1/sandboxes?cursor=" + b"a" * (size - 21)
    elif where == "header":
        headers = b"X-Long: " + b"a" * size + b"\r\n"
    else:
        headers = b"".join(b"X-%02d: %s\r\n" % (i, b"a" * (size // 40)) for i in range(40))
    answer, _ = raw_request(server.port, b"GET " + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + headers + b"\r\n")
    status, code = (414, b'"uri_too_long"') if where == "target" else (431, b'"headers_too_large"')
    if accepted:
        assert statuses(answer)[0] in (200, 400)
    else:
        assert statuses(answer) == [status] and b"application/problem+json" in answer and code in answer, answer[:500]


def test_too_many_headers_are_a_problem(server):
    headers = b"".join(b"X-%d: a\r\n" % i for i in range(101))
    answer, _ = raw_request(server.port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + headers + b"\r\n")
    assert statuses(answer) == [431] and b'"headers_too_large"' in answer


# --- B12 -----------------------------------------------------------------------------------
def get(server, target):
    answer, _ = raw_request(server.port, b"GET " + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    return statuses(answer)[0], answer


@pytest.mark.parametrize("target", [
    b"/v1/sandboxes/http%2f..%2fother", b"/v1/sandboxes/http%2ffiles?path=x", b"/v1/sandboxes/a%00b", b"/v1/sandboxes/%2e%2e",
    b"/v1/sandboxes/../admin/sandboxes", b"/v1/sandboxes/http/../http", b"/v1/sandboxes/%ff", b"/v1/sandboxes//http",
    b"/v1/sandboxes/http/", b"/v1/sandboxes/%", b"/v1/sandboxes/%2", b"/v1/sandboxes/%zz", b"//v1/sandboxes",
    b"/v1/sandboxes/http\\..", b"/v1/sandboxes/http;x", b"/v1/sandboxes/http#a", b"/v1/sandboxes/ht%0atp",
])
def test_b12_segments_are_strict(server, box, target):
    code, answer = get(server, target)
    assert code in (400, 404), answer
    assert b'"state"' not in answer


def test_b12_a_raw_nul(server):
    answer, closed = raw_request(server.port, b"GET /v1/sandboxes/ht\0tp HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", timeout=10)
    assert statuses(answer) in ([400], []) and b'"state"' not in answer


@pytest.mark.parametrize("query, want", [
    (b"path=/data/a%00/../../etc/shadow", 400), (b"path=%", 400), (b"path=%2", 400), (b"path=%ff", 404), (b"path=a&path=b", 400),
    (b"path=a&nothing=b", 400), (b"path", 400), (b"", 400), (b"path=%2e%2e%2f%2e%2e%2fetc/hostname%2fx", 409),
])
def test_b12_file_paths(server, box, query, want):
    code, answer = get(server, b"/v1/sandboxes/http/files?" + query)
    assert code in (want, 404) if want == 409 else code == want, answer


def test_b12_the_sandboxes_own_kernel_resolves_dots(client, box):
    inside = client.exec(box, "cat /etc/debian_version 2>/dev/null")["stdout"]
    assert client.read(box, "../etc/debian_version").decode() == inside


# --- B13 ---------------------------------------------------------------------------------------
BAD_JSON = {
    "trailing text": b'{"id":"a"}xyz', "two values": b'{} {}', "empty": b"", "array": b"[]", "string": b'"a"', "nothing": b"null",
    "NUL escape": b'{"id":"a\\u0000b"}', "bad escape": b'{"id":"\\uZZZZ"}', "lone surrogate": b'{"image":"\\ud800"}',
    "duplicate": b'{"id":"a","id":"b"}', "nested duplicate": b'{"env":{"A":"1","A":"2"}}', "case": b'{"Image":"A"}',
    "leading zero": b'{"ttl":007}', "dot": b'{"ttl":1.}', "infinity": b'{"ttl":1e999}', "nan": b'{"ttl":NaN}',
    "raw control": b'{"image":"a\x01b"}', "raw newline": b'{"image":"a\nb"}', "byte order mark": b'\xef\xbb\xbf{}',
    "bad UTF-8": b'{"image":"\xff\xfe"}', "overlong": b'{"image":"\xc0\xaf"}', "raw NUL": b'{"image":"a\0b"}',
    "deep": b'{"env":' * 100 + b"1" + b"}" * 100, "very deep": b"[" * 200000, "single quotes": b"{'id':'a'}", "comment": b"{/**/}",
    "trailing comma": b'{"ttl":5,}', "2^31 cpu": b'{"run_as_user":2147483648}', "2^53+1": b'{"run_as_user":9007199254740993}',
    "negative": b'{"ttl":-1}', "fraction": b'{"run_as_user":1000.5}', "many values": b'{"secrets":[' + b'"a",' * 300000 + b'"a"]}',
}


@pytest.mark.parametrize("name", [name for name in BAD_JSON if name != "empty"])
def test_b13_bad_json(client, name):
    response = client.request("POST", "/v1/sandboxes?dry_run=true", data=BAD_JSON[name], headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 413), response.text
    assert response.json()["code"] in ("invalid_json", "invalid_field", "too_large")


@pytest.mark.parametrize("name", [name for name in BAD_JSON if name not in ("2^31 cpu", "2^53+1")])
def test_b13_bad_json_of_an_exec(client, box, name):
    body = BAD_JSON[name]
    response = client.request("POST", f"/v1/sandboxes/{box}/execs", data=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 413), response.text


@pytest.mark.parametrize("value", [b"1e999", b"-1", b"9007199254740993", b'"5"', b"[]", b"true"])
def test_b13_numbers(client, box, value):
    body = b'{"cmd":["true"],"timeout":' + value + b"}"
    client.problem("POST", f"/v1/sandboxes/{box}/execs", 400, data=body, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("value", [b"1e999", b"-1", b"0", b"0.5", b"2147483648", b"4294967376", b"9007199254740993", b"8e3000", b"null"])
def test_b13_ports(client, box, value):
    body = b'{"port":' + value + b',"wait":false}'
    problem = client.problem("POST", f"/v1/sandboxes/{box}/previews", 400, data=body, headers={"Content-Type": "application/json"})
    assert "port" in problem["detail"] or problem["code"] == "invalid_json" and "number" in problem["detail"]


def test_b13_strict_answers(client, box):
    response = client.request("POST", f"/v1/sandboxes/{box}/execs", 200, json={"cmd": ["printf", "\\377\\376a\\300\\257"]})

    def refuse(name):
        raise AssertionError(name)
    parsed = json.loads(response.content.decode("utf-8", "strict"), parse_constant=refuse)
    assert parsed["exit_code"] == 0


def test_b13_large_numbers_survive(client, box):
    client.exec(box, ["truncate", "-s", str(1 << 40), "huge"])
    entry = next(item for item in client.tree(box, ".")["items"] if item["path"] == "huge")
    assert entry["size"] == 1 << 40
    client.exec(box, ["rm", "huge"])


# --- the rest ------------------------------------------------------------------------------------
def test_request_ids(client):
    response = client.request("GET", "/v1/version", 200, headers={"X-Request-ID": "abc-123"})
    assert response.headers["X-Request-ID"] == "abc-123"
    assert client.request("GET", "/v1/version", 200).headers["X-Request-ID"]
    evil = client.request("GET", "/v1/nothing", 404, headers={"X-Request-ID": "a" * 1000})
    assert evil.headers["X-Request-ID"] != "a" * 1000


def test_body_where_none_belongs(client, box):
    client.problem("GET", "/v1/sandboxes", 400, data=b"hello")
    client.problem("DELETE", f"/v1/sandboxes/{box}", 400, data=b"hello")
    assert client.sandbox(box)["state"] == "running"


def test_loopback_only_without_keys(server):
    """B58: without keys, foreign names of this address are not served, nor pages of other origins."""
    def ask(headers):
        return requests.get(server.url + "/v1/sandboxes", headers=headers, timeout=30).status_code
    assert ask({"Host": "evil.example"}) == 421
    assert ask({"Host": f"127.0.0.1.nip.io:{server.port}"}) == 421
    assert ask({"Host": f"localhost:{server.port}"}) == 200
    assert ask({"Host": f"[::1]:{server.port}"}) == 200
    assert ask({"Origin": "http://run-1.127.0.0.1.nip.io"}) in (403, 421)
    assert ask({"Origin": "null"}) in (403, 421)
    assert ask({"Origin": f"http://127.0.0.1:{server.port}"}) == 200


def test_no_permissive_cors(client):
    response = client.request("OPTIONS", "/v1/sandboxes", headers={"Origin": "http://127.0.0.1:1", "Access-Control-Request-Method": "POST"})
    assert "Access-Control-Allow-Origin" not in response.headers


def test_expect_continue(server, box):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        body = b'{"cmd":["true"]}'
        sock.sendall(b"POST /v1/sandboxes/http/execs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                     b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert sock.recv(4096).startswith(b"HTTP/1.1 100")
        sock.sendall(body)
        answer = b""
        while piece := sock.recv(4096):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 200")


def test_health_pages(client):
    assert client.request("GET", "/healthz", 200)
    assert client.request("GET", "/readyz", 200)
    assert client.request("GET", "/openapi.yaml", 200).text.startswith("openapi:")
    version = client.get("/v1/version")
    assert version["version"]
    assert client.get("/v1/capabilities")["driver"] == "kubernetes" or "kubernetes" in json.dumps(client.get("/v1/capabilities"))


def test_slow_clients_do_not_hold_a_worker(server, client, box):
    """More unfinished requests than there are workers, and the server answers all the same."""
    socks = []
    try:
        for _ in range(60):
            sock = socket.create_connection(("127.0.0.1", server.port))
            sock.sendall(b"POST /v1/sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                         b"Content-Length: 100\r\n\r\n{")
            socks.append(sock)
        assert client.exec(box, ["true"])["exit_code"] == 0
    finally:
        for sock in socks:
            sock.close()


def test_waiting_takes_no_worker(server, client, box):
    """More waiting execs than any pool has threads."""
    records = [client.start(box, ["cat"]) for _ in range(100)]
    socks = []
    for record in records:
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.sendall(f"GET /v1/sandboxes/http/execs/{record['id']}?wait=60 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
                     .encode())
        socks.append(sock)
    assert client.exec(box, ["true"])["exit_code"] == 0
    for record in records:
        client.request("PUT", f"/v1/sandboxes/http/execs/{record['id']}/stdin", (200, 204), data=b"")
    for sock in socks:
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        assert b'"exit_code":0' in answer.replace(b" ", b"")
        sock.close()
    wait_until(lambda: client.sandbox(box)["running_execs"] == 0)
