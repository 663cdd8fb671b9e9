"""The WebSocket of an execution, by hand: the handshake, frames that are none, keys, clients that vanish, the server's end."""

import base64
import hashlib
import json
import os
import random
import socket
import struct
import time

import pytest
from websockets.exceptions import InvalidStatus

from attaching import PROTOCOL, Attached, terminal
from server import SOAK, open_request, reset, unplug, wait_until

KEYS = {"alices-key": ("alice", "user"), "bobs~key?>": ("bob", "user")}
OPTIONS = ("--preview-domain", "example.test", "--output-quota", "16Mi")
NONCE = base64.b64encode(bytes(16)).decode()
HANDSHAKE = {"Connection": "keep-alive, Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": NONCE}
CONTINUED, TEXT, BYTES, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


@pytest.fixture(scope="module")
def box(cloud):
    return cloud.client("alices-key").create(ttl=3600)["id"]


@pytest.fixture
def number(client, box):
    """A terminal that echoes, and is there as long as the test."""
    number = terminal(client, box, ["cat"])
    yield number
    client.request("DELETE", f"/v1/sandboxes/{box}/execs/{number}?grace=0", (202, 204))


def path_of(box, number, query=""):
    return f"/v1/sandboxes/{box}/execs/{number}/attach{query}"


def frame(opcode, data=b"", fin=True, mask=b"\1\2\3\4", length=None, rsv=0):
    length = len(data) if length is None else length
    head = bytes([fin << 7 | rsv << 4 | opcode])
    bit = 128 if mask else 0
    head += bytes([bit | length]) if length < 126 else bytes([bit | 126]) + struct.pack(">H", length) if length < 65536 else \
        bytes([bit | 127]) + struct.pack(">Q", length)
    return head + mask + (bytes(byte ^ mask[i % 4] for i, byte in enumerate(data)) if mask else data)


class Raw:
    """A client that may say anything."""

    def __init__(self, server, box, number, query="", early=b"", headers=None):
        headers = {**HANDSHAKE, "Authorization": "Bearer alices-key", **(headers or {})}
        self.sock = open_request(server.port, "GET", path_of(box, number, query), early, {**headers, "Content-Length": 0})
        self.rest = self.sock.makefile("rb")
        self.status = int(self.rest.readline().split()[1])
        self.headers = dict(line.decode().rstrip("\r\n").split(": ", 1) for line in iter(self.rest.readline, b"\r\n"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.rest.close()
        self.sock.close()

    def send(self, data):
        self.sock.sendall(data)

    def read(self):
        """(opcode, payload), or None at the end."""
        head = self.rest.read(2)
        if len(head) < 2:
            return None
        length = head[1]
        assert length < 128 and head[0] & 0x70 == 0, "a server does not mask"
        if length >= 126:
            length = int.from_bytes(self.rest.read(2 if length == 126 else 8), "big")
        return head[0], self.rest.read(length)

    def code(self):
        """The code of the close; all before it is thrown away. The connection ends after it."""
        while True:
            got = self.read()
            if got is None:
                return None
            if got[0] == 128 | CLOSE:
                break
        try:
            self.send(frame(CLOSE, got[1]))
            assert self.rest.read() == b""
        except OSError:
            pass  # it did not wait for ours, or had had it
        return int.from_bytes(got[1][:2], "big") if got[1] else 1005


# --- the handshake


def test_the_handshake(server, box, number):
    with Raw(server, box, number, headers={"Sec-WebSocket-Protocol": f"other, {PROTOCOL}"}) as raw:
        expected = base64.b64encode(hashlib.sha1(NONCE.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()
        assert raw.status == 101 and raw.headers["Sec-WebSocket-Accept"] == expected
        assert raw.headers["Sec-WebSocket-Protocol"] == PROTOCOL and raw.headers["Upgrade"] == "websocket"
        assert json.loads(raw.read()[1])["type"] == "started"
    with Raw(server, box, number, headers={"Sec-WebSocket-Protocol": "other"}) as raw:
        assert raw.status == 101 and "Sec-WebSocket-Protocol" not in raw.headers


def test_what_is_no_handshake(client, box, number):
    path = path_of(box, number)
    for left_out in ("Upgrade", "Connection", "Sec-WebSocket-Version"):
        problem = client.request("GET", path, 426, headers={name: value for name, value in HANDSHAKE.items() if name != left_out})
        assert problem.json()["code"] == "upgrade_required" and problem.headers["Upgrade"] == "websocket", left_out
        assert problem.headers["Sec-WebSocket-Version"] == "13"
    client.problem("GET", path, 426, "upgrade_required", headers={**HANDSHAKE, "Sec-WebSocket-Version": "8"})
    client.problem("GET", path, 400, "invalid_request", headers={**HANDSHAKE, "Sec-WebSocket-Key": "short"})
    client.problem("GET", path, 400, "invalid_request", headers={name: value for name, value in HANDSHAKE.items() if name != "Sec-WebSocket-Key"})
    client.request("HEAD", path, 426, headers=HANDSHAKE)
    for query in ("offset=x", "write=maybe", "takeover=1", "write=false&takeover=true", "offset=--1", "other=1"):
        client.problem("GET", f"{path}?{query}", 400, "invalid_field", headers=HANDSHAKE)
    client.problem("GET", path_of(box, 999999), 404, "not_found", headers=HANDSHAKE)
    client.problem("GET", path_of("not-there", 1), 404, "not_found", headers=HANDSHAKE)
    client.problem("GET", path, 403, "forbidden", headers={**HANDSHAKE, "Origin": "http://elsewhere.test"})


def test_of_a_sandbox_that_is_gone(client):
    box = client.create(ttl=60)["id"]
    number = terminal(client, box, ["cat"])
    with Attached(client, box, number) as me:
        client.delete(box)
        assert me.closed() == 1011 and me.messages[-1]["type"] == "error" and me.messages[-1]["code"] == "sandbox_gone"
    client.problem("GET", path_of(box, number), 410, "gone", headers=HANDSHAKE)


def test_whose_it_is(server, client, box, number):
    bob = server.client("bobs~key?>")
    bob.problem("GET", path_of(box, number), 404, "not_found", headers=HANDSHAKE)
    bob.problem("POST", f"/v1/sandboxes/{box}/execs/{number}/resize", 404, "not_found", json={"cols": 9, "rows": 9})
    server.client().problem("GET", path_of(box, number), 401, "unauthenticated", headers=HANDSHAKE)


def test_a_key_as_a_subprotocol(server, box, number):
    """For pages of a browser. On no other route, and never said again."""
    nobody, own = server.client(), server.client("bobs~key?>").create(ttl=600)["id"]

    def offer(key):
        return f"podsandbox.bearer.{base64.urlsafe_b64encode(key.encode()).decode().rstrip('=')}"
    with Attached(nobody, box, number, subprotocols=[offer("alices-key"), PROTOCOL]) as me:
        assert me.socket.subprotocol == PROTOCOL and me.started["writer"]
    theirs = terminal(server.client("bobs~key?>"), own, ["cat"])
    assert "_" in offer("bobs~key?>") or "-" in offer("bobs~key?>")  # the alphabet for URLs
    with Attached(nobody, own, theirs, subprotocols=[PROTOCOL, offer("bobs~key?>")]) as me:
        assert me.started["writer"]
    for bad in (offer("other-key"), "podsandbox.bearer.", "podsandbox.bearer.a", "podsandbox.bearer.YQ==", "podsandbox.bearer.AAAA"):
        with pytest.raises(InvalidStatus) as refused:
            Attached(nobody, box, number, additional_headers={"Sec-WebSocket-Protocol": bad}, subprotocols=None)
        assert refused.value.response.status_code == 401, bad
    with pytest.raises(InvalidStatus) as refused:
        Attached(nobody, box, number, subprotocols=[PROTOCOL, offer("bobs~key?>")])
    assert refused.value.response.status_code == 404
    for path in (f"/v1/sandboxes/{box}", f"/v1/sandboxes/{box}/execs/{number}/output"):
        nobody.problem("GET", path, 401, "unauthenticated", headers={"Sec-WebSocket-Protocol": offer("alices-key")})
    assert "alices-key" not in server.log() and offer("alices-key") not in server.log()


def test_b16_what_comes_with_the_request(server, client, box):
    """Frames in the packet of the request, whole or cut anywhere, are not lost."""
    for cut in range(0, 40, 1 if SOAK else 5):
        number = terminal(client, box, ["cat"])
        frames = frame(BYTES, b"\0first\n") + frame(BYTES, b"\0\4")
        with Raw(server, box, number, early=frames[:cut]) as raw:
            raw.send(frames[cut:])
            seen = b""
            while (got := raw.read())[0] != 128 | CLOSE:
                seen += got[1][1:] if got[0] == 128 | BYTES else b""
            assert seen == b"first\r\nfirst\r\n", cut


# --- frames


BAD = [
    ("not masked", frame(TEXT, b"{}", mask=b""), (1002,)),
    ("an opcode that is none", frame(3), (1002,)),
    ("a control opcode that is none", frame(11), (1002,)),
    ("a reserved bit", frame(TEXT, b"{}", rsv=4), (1002,)),
    ("a continuation of nothing", frame(CONTINUED, b"x"), (1002,)),
    ("a message within a message", frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"), (1002,)),
    ("a ping in pieces", frame(PING, b"x", fin=False), (1002,)),
    ("a long ping", frame(PING, b"x" * 126), (1002,)),
    ("a length that could be shorter", bytes([0x82, 0xFE, 0, 1]) + bytes(4) + b"\0", (1002,)),
    ("a length beyond all", frame(BYTES, b"", length=1 << 62)[:14] + b"x", (1009, 1002)),
    ("a message that is too long", frame(BYTES, b"\0" + b"x" * 65537), (1009,)),
    ("one that gets too long", frame(BYTES, b"\0" + b"x" * 40000, fin=False) + frame(CONTINUED, b"x" * 40000), (1009,)),
    ("text that is no UTF-8", frame(TEXT, b"\xff\xfe"), (1007,)),
    ("text that is no JSON", frame(TEXT, b"{\"type\": "), (1007,)),
    ("a close of one byte", frame(CLOSE, b"\3"), (1002, 1005)),
    ("a code that is none", frame(CLOSE, struct.pack(">H", 999)), (1002,)),
    ("channel 9", frame(BYTES, b"\x09data"), (1008,)),
    ("no channel", frame(BYTES), (1008,)),
    ("half a size", frame(BYTES, b"\4\0\1"), (1008,)),
]


@pytest.mark.parametrize("bad, codes", [one[1:] for one in BAD], ids=[one[0] for one in BAD])
def test_frames_that_are_none(server, client, box, number, bad, codes):
    with Raw(server, box, number) as raw:
        raw.send(bad)
        assert raw.code() in codes
    with Attached(client, box, number) as me:  # the command does not mind
        me.type("still\n")
        me.shows("still\r\nstill\r\n")


def test_frames_in_pieces(server, client, box):
    number = terminal(client, box, ["cat"])
    with Raw(server, box, number) as raw:
        pieces = frame(BYTES, b"\0on", fin=False) + frame(PING, b"hello") + frame(CONTINUED, b"e\n") + frame(TEXT, b'{"type":"ping"}') + \
            frame(BYTES, b"\0\4")
        for byte in pieces:
            raw.send(bytes([byte]))
        got = []
        while not got or got[-1][0] != 128 | CLOSE:
            got.append(raw.read())
        assert (128 | PONG, b"hello") in got and (128 | TEXT, b'{"type":"pong"}') in got
        assert b"".join(data[1:] for code, data in got if code == 128 | BYTES) == b"one\r\none\r\n"
        assert got[-1] == (128 | CLOSE, struct.pack(">H", 1000))


@pytest.mark.parametrize("code, data", [(1000, struct.pack(">H", 1000)), (1005, b""), (3001, struct.pack(">H", 3001) + b"why")])
def test_a_close_is_answered(server, box, number, code, data):
    with Raw(server, box, number) as raw:
        raw.send(frame(CLOSE, data))
        assert raw.code() == code


def test_controls_that_are_refused(client, box, number):
    with Attached(client, box, number) as me:
        for message in ("{}", "[]", '{"type":"x"}', '{"type":1}', '{"type":"signal"}', '{"type":"ping","x":1}', '{"type":"ping","type":"ping"}'):
            me.socket.send(message)
            if message.count("type") == 2:
                assert me.closed() == 1007  # it is no JSON to us
            else:
                assert me.told("error")["code"] == "invalid_field", message


def test_noise(server, client, box, number):
    """Whatever comes, the server lives and leaks nothing."""
    noise = random.Random(7)
    before = len(server.descriptors())
    for _ in range(300 if SOAK else 60):
        with Raw(server, box, number) as raw:
            pieces = [noise.choice(BAD)[1] if noise.random() < 0.2 else frame(noise.choice((0, 1, 2, 8, 9, 10)), noise.randbytes(noise.choice((0, 1, 5, 200))),
                      fin=noise.random() < 0.8) if noise.random() < 0.7 else noise.randbytes(40) for _ in range(noise.randrange(1, 6))]
            try:
                raw.send(b"".join(pieces))
                raw.sock.shutdown(socket.SHUT_WR)
                while raw.read() is not None:
                    pass
            except OSError:
                pass
    wait_until(lambda: len(server.descriptors()) <= before + 2, what="the descriptors of before")
    assert client.exec(box, ["echo", "alive"])["stdout"] == "alive\n"


# --- clients that leave


def count_of(client, box, number):
    """Who comes becomes the writer, unless another still is."""
    with Attached(client, box, number) as me:
        return me.started["writer"]


@pytest.mark.parametrize("how", ["close", "reset", "unplug"])
def test_a_client_that_has_gone_is_not_the_writer(server, client, box, number, how):
    raw = Raw(server, box, number)
    assert json.loads(raw.read()[1])["writer"] is True
    if how == "unplug":
        unplug(raw.sock)
    elif how == "reset":
        raw.rest.close()
        reset(raw.sock)
    else:
        raw.rest.close()
        raw.sock.close()
    wait_until(lambda: count_of(client, box, number), what="the writer's end")


def test_many_come_and_go(server, client, box, number):
    def usage():
        return len(server.descriptors()), len(os.listdir(f"/proc/{server.pid()}/task"))
    with Attached(client, box, number):
        pass
    before = usage()
    for index in range(500 if SOAK else 50):
        me = Attached(client, box, number)
        me.type("x\n")
        (me.vanish if index % 2 else me.leave)()
    wait_until(lambda: usage()[0] <= before[0] + 2 and usage()[1] <= before[1] + 2, what=lambda: f"{before}, not {usage()}")


def test_a_watcher_that_stands_still_holds_nobody_up(client, box):
    """More than is kept goes by: he gets a gap, the writer every byte."""
    size = 40 << 20
    number = terminal(client, box, f"read go; stty -opost; head -c {size} /dev/zero | tr '\\0' x; echo end")
    with Attached(client, box, number) as me, Attached(client, box, number, "write=false", max_queue=1) as still:
        me.type("\n")
        total = 0
        while me.step() is not None:
            total += len(me.out)
            me.out.clear()
        assert total == size + len("\r\nend\n") and me.code == 1000 and not me.gaps
        assert still.end()["stdout_bytes"] == total
        assert len(still.gaps) == 1 and still.out.endswith(b"xend\n")
        assert still.gaps[0]["to"] + len(still.out) == total


def test_a_writer_who_stands_still_is_left_behind(client, box):
    """The command waits for him, as a terminal does, but not for ever; then the others go on."""
    size = 60 << 20
    number = terminal(client, box, f"read go; stty -opost; head -c {size} /dev/zero | tr '\\0' x; echo end")
    with Attached(client, box, number, max_queue=1) as still, Attached(client, box, number, "write=false") as other:
        still.type("\n")
        total = 0
        while other.step(60) is not None:
            total += len(other.out)
            other.out.clear()
        assert other.code == 1000 and other.messages[-1]["stdout_bytes"] == size + len("\r\nend\n")
        assert total == other.messages[-1]["stdout_bytes"] - sum(gap["to"] - gap["from"] for gap in other.gaps)
        assert still.closed() == 1008 and still.messages[-1]["code"] == "slow_reader"


def test_input_that_is_not_read(client, box):
    """It waits where it is; what is sent meanwhile, and he who sends it, may come to an end all the same."""
    number = client.post(f"/v1/sandboxes/{box}/execs", {"cmd": ["sh", "-c", "read go; wc -c"], "stdin_encoding": "raw"}, 202)["id"]
    with Attached(client, box, number) as me:
        me.type(b"go\n" + b"x" * 3000000)
        me.say("close_stdin")
        assert me.end()["exit_code"] == 0 and bytes(me.out).strip() == b"3000000"
    number = client.post(f"/v1/sandboxes/{box}/execs", {"cmd": ["sleep", "1000"], "stdin_encoding": "raw"}, 202)["id"]
    with Raw(client_server(client), box, number) as raw:
        raw.sock.settimeout(1)
        with pytest.raises(TimeoutError):
            while True:
                raw.send(frame(BYTES, b"\0" + b"x" * 60000))
    client.request("DELETE", f"/v1/sandboxes/{box}/execs/{number}?grace=0", 204)


class client_server:
    def __init__(self, client):
        self.port = int(client.base.rsplit(":", 1)[1])


# --- the server's end


def test_the_server_stops(fresh):
    server = fresh(keys=KEYS).start()
    client = server.client("alices-key")
    box = client.create(ttl=600)["id"]
    number = terminal(client, box, ["cat"])
    with Attached(client, box, number) as me, Raw(server, box, number) as deaf:
        me.type("one\n")
        me.shows("one\r\none\r\n")
        began = time.monotonic()
        server.stop()
        assert me.closed() == 1001
        assert time.monotonic() - began < 15  # nor does one who does not answer hold it up
        assert deaf.code() == 1001
    server.start()
    with Attached(client, box, number, f"offset={len(me.out)}") as again:
        again.type("two\n\4")
        assert again.end()["exit_code"] == 0 and bytes(again.out) == b"two\r\ntwo\r\n"
