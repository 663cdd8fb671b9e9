#!/usr/bin/env python3
"""The peer of the tests of net/: HTTP and WebSocket by hand, so that it can misbehave to the byte.

Prints its ports on one line and ends when its standard input does. With a directory as argument it
also serves TLS with the certificates there.
"""

import base64
import hashlib
import os
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.parse

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
LOCK = threading.Lock()
LOG = []
PAUSE = 0.01  # lets the other side read what was sent so far; no result depends on it


def log(line):
    with LOCK:
        LOG.append(line)


class Gone(Exception):
    pass


class Conn:
    def __init__(self, sock):
        self.sock = sock
        self.have = b""

    def send(self, data):
        self.sock.sendall(data)

    def fill(self):
        data = self.sock.recv(65536)
        if not data:
            raise Gone()
        self.have += data

    def take(self, count):
        while len(self.have) < count:
            self.fill()
        data, self.have = self.have[:count], self.have[count:]
        return data

    def head(self):
        while b"\r\n\r\n" not in self.have:
            self.fill()
            if not self.have[:1].isalpha():  # TLS to the port without
                raise Gone()
        text, self.have = self.have.split(b"\r\n\r\n", 1)
        lines = text.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:]]
        return method, target, headers

    def reset(self):
        """Ends with RST instead of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()
        raise Gone()


def find(headers, name):
    return next((value for key, value in headers if key.lower() == name), None)


def reply(code, body=b"", *extra):
    lines = [f"HTTP/1.1 {code} Status", f"Content-Length: {len(body)}", *extra]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


# --- WebSocket -----------------------------------------------------------------------------------


def frame(opcode, payload=b"", fin=True):
    head = bytes([(0x80 if fin else 0) | opcode])
    if len(payload) < 126:
        head += bytes([len(payload)])
    elif len(payload) < 65536:
        head += bytes([126]) + struct.pack(">H", len(payload))
    else:
        head += bytes([127]) + struct.pack(">Q", len(payload))
    return head + payload


def read_frame(conn):
    first, second = conn.take(2)
    size = second & 0x7F
    if size == 126:
        (size,) = struct.unpack(">H", conn.take(2))
    elif size == 127:
        (size,) = struct.unpack(">Q", conn.take(8))
    if not second & 0x80:
        log("unmasked")
        raise Gone()
    mask = conn.take(4)
    data = conn.take(size)
    pad = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    data = (int.from_bytes(data, "big") ^ pad).to_bytes(size, "big") if size else b""
    return first & 0x0F, data


def read_message(conn):
    """The next data message; answers CLOSE and PING on the way."""
    while True:
        opcode, data = read_frame(conn)
        if opcode == 8:
            log("close %d" % (struct.unpack(">H", data[:2])[0] if data else 0))
            conn.send(frame(8, data))
            raise Gone()
        if opcode == 9:
            log("ping")
            conn.send(frame(10, data))
        elif opcode != 10:
            return data


def accept(headers, wrong=False, protocol=None):
    key = find(headers, "sec-websocket-key") + GUID
    answer = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    if wrong:
        answer = "A" + answer[1:] if answer[0] != "A" else "B" + answer[1:]
    offered = find(headers, "sec-websocket-protocol")
    protocol = protocol or (offered.split(",")[0].strip() if offered else None)
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Accept: " + answer,
    ]
    if protocol:
        lines.append("Sec-WebSocket-Protocol: " + protocol)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def wait_close(conn):
    try:
        while True:
            read_message(conn)
    except (Gone, OSError):
        log("over")


THREE = frame(2, b"\x01") + frame(2, b"\x01hello") + frame(2, b"\x02oops")


def ws_burst(conn, ok, _):
    conn.send(ok + THREE)
    wait_close(conn)


def ws_bytewise(conn, ok, _):
    for byte in ok + THREE:
        conn.send(bytes([byte]))
    wait_close(conn)


def ws_half(conn, ok, args):
    cut = int(args[0])
    data = ok + THREE
    conn.send(data[: len(ok) + cut])
    time.sleep(PAUSE)
    conn.send(data[len(ok) + cut :])
    wait_close(conn)


def ws_fragments(conn, ok, _):
    conn.send(ok + frame(2, b"\x01one ", fin=False))
    conn.send(frame(9, b"between"))
    while True:
        opcode, data = read_frame(conn)
        if opcode == 10:
            log("pong " + data.decode())
            break
    conn.send(frame(0, b"two ", fin=False) + frame(9, b"again") + frame(0, b"", fin=False))
    conn.send(frame(0, b"three") + frame(2, b"\x02next"))
    wait_close(conn)


def ws_empty(conn, ok, _):
    conn.send(ok + frame(2) + frame(2, fin=False) + frame(0, fin=False) + frame(0, b"\x01"))
    conn.send(frame(2, fin=False) + frame(0) + frame(2, b"\x01end"))
    wait_close(conn)


def pattern(size):
    return bytes(range(251)) * (size // 251) + bytes(range(size % 251))


def ws_large(conn, ok, _):
    data = pattern(1 << 20)
    conn.send(ok + frame(2, data))
    conn.send(frame(2, data[:1], fin=False))
    for at in range(1, len(data) - 70000, 70000):
        conn.send(frame(0, data[at : at + 70000], fin=False))
        last = at + 70000
    conn.send(frame(0, data[last:]))
    wait_close(conn)


def ws_echo(conn, ok, _):
    conn.send(ok)
    while True:
        conn.send(frame(2, read_message(conn)))


def ws_flood(conn, ok, args):
    left = int(args[0])
    conn.send(ok)
    data = pattern(30000)
    while left > 0:
        conn.send(frame(2, data[: min(left, 30000)]))
        left -= 30000
    conn.send(frame(9, b"after"))
    wait_close(conn)


def ws_sink(conn, ok, _):
    """Reads nothing until the control connection says so, then counts."""
    conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 262144)
    conn.send(ok)
    SINK.wait(30)
    total = 0
    try:
        while True:
            total += len(read_message(conn))
    finally:
        log("sink %d" % total)


SINK = threading.Event()


def ws_close(conn, ok, args):
    conn.send(ok + frame(2, b"\x01last"))
    payload = struct.pack(">H", int(args[0])) + b"because" if args[0] != "none" else b""
    conn.send(frame(8, payload))
    opcode, data = read_frame(conn)
    log("answer %d %s" % (opcode, struct.unpack(">H", data[:2])[0] if data else "none"))
    try:
        conn.fill()
    except (Gone, OSError):
        log("over")


def ws_fin(conn, ok, _):
    conn.send(ok + THREE)
    raise Gone()


def ws_reset(conn, ok, _):
    conn.send(ok + frame(2, b"\x01") + frame(2, b"\x01hello"))
    read_message(conn)
    conn.reset()


def ws_partial(conn, ok, _):
    """Ends inside a message."""
    conn.send(ok + frame(2, b"\x01abc", fin=False) + frame(0, b"0123456789")[:6])
    raise Gone()


def ws_ping(conn, ok, _):
    conn.send(ok + frame(9, b"are you there"))
    opcode, data = read_frame(conn)
    conn.send(frame(2, b"%d " % opcode + data))
    wait_close(conn)


def ws_silent(conn, ok, _):
    """Answers nothing, counts pings."""
    conn.send(ok)
    try:
        while True:
            opcode, _data = read_frame(conn)
            log("silent %d" % opcode)
    except (Gone, OSError):
        log("over")


def ws_broken(conn, ok, args):
    bad = {
        "opcode": frame(3, b"x"),
        "reserved": b"\xc2\x01x",
        "continuation": frame(0, b"x"),
        "control": b"\x89\x7e\x00\x80" + b"x" * 128,
        "length": b"\x82\xff" + b"\xff" * 8,
    }[args[0]]
    conn.send(ok + bad)
    wait_close(conn)


WS = {name[3:]: fn for name, fn in globals().items() if name.startswith("ws_")}


def websocket(conn, target, headers):
    mode, *args = target.split("?")[0].strip("/").split("/")[1:]
    if mode == "refuse":
        code = int(args[0])
        extra = ["Content-Type: text/plain"]
        if code == 301:
            extra.append("Location: /ws/echo")
        conn.send(reply(code, b'container not found ("main")', *extra))
        log("refused %d" % code)
    elif mode == "wrong":
        conn.send(accept(headers, wrong=True) + THREE)
    elif mode == "unoffered":
        conn.send(accept(headers, protocol="other") + THREE)
    elif mode == "plain":
        conn.send(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    elif mode == "garbage":
        conn.send(b"\x15\x03\x01\x00\x02\x02\x16")
    elif mode == "nothing":
        raise Gone()
    elif mode == "cut":
        conn.send(accept(headers)[:40])
        raise Gone()
    elif mode == "hang":
        log("hanging")
        conn.fill()
    elif mode == "huge":
        conn.send(b"HTTP/1.1 101 Switching Protocols\r\nX-Big: " + b"x" * 200000 + b"\r\n\r\n")
    elif mode == "headers":
        lines = [target] + ["%s: %s" % pair for pair in headers]
        conn.send(accept(headers) + frame(2, "\n".join(lines).encode()))
        wait_close(conn)
    else:
        WS[mode](conn, accept(headers), args)
    raise Gone()


# --- HTTP ----------------------------------------------------------------------------------------


def lines_reply(conn, query):
    """Chunks that do not end where lines do."""
    count = int(query.get("n", "3"))
    text = b"".join(b'{"line":%d,"pad":"%s"}\n' % (i, b"x" * (i % 50)) for i in range(count))
    if query.get("end") == "open":
        text = text[:-1]
    conn.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    size = int(query.get("chunk", "7"))
    for at in range(0, len(text), size):
        part = text[at : at + size]
        conn.send(b"%x\r\n" % len(part) + part + b"\r\n")
    if query.get("then") == "hang":
        log("lines sent")
        conn.fill()
    if query.get("then") == "cut":
        raise Gone()
    conn.send(b"0\r\n\r\n")


def http(conn, count, method, target, headers):
    path, _, text = target.partition("?")
    query = dict(urllib.parse.parse_qsl(text))
    body = conn.take(int(find(headers, "content-length") or 0))
    if path == "/echo":
        lines = [method, target, str(count)] + sorted("%s: %s" % pair for pair in headers)
        conn.send(reply(200, "\n".join(lines).encode() + b"\n\n" + body))
    elif path == "/status":
        extra = ["Retry-After: " + query["retry"]] if "retry" in query else []
        conn.send(reply(int(query["code"]), b"{}", *extra))
    elif path == "/redirect":
        conn.send(reply(301, b"", "Location: /echo"))
    elif path == "/big":
        conn.send(reply(200, b"x" * int(query["bytes"])))
    elif path == "/once":  # answers the first request of a connection, then drops what comes
        log(method + " " + query["tag"])
        if count > 1:
            raise Gone()
        conn.send(reply(200, b"once"))
    elif path == "/cut":
        conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789")
        raise Gone()
    elif path == "/nothing":
        raise Gone()
    elif path == "/garbage":
        conn.send(b"what is this\r\n\r\n")
        raise Gone()
    elif path == "/reset":
        conn.reset()
    elif path == "/hang":
        log("hanging")
        conn.fill()
    elif path == "/lines":
        lines_reply(conn, query)
    elif path == "/log":
        with LOCK:
            text = "\n".join(LOG)
            if "clear" in query:
                LOG.clear()
        conn.send(reply(200, text.encode()))
    elif path == "/sink":
        SINK.set()
        conn.send(reply(200))
    else:
        conn.send(reply(404, b"no such path"))


def serve(sock, context):
    conn = None
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context:
            sock = context.wrap_socket(sock, server_side=True)
            if context.sni_callback is None:
                log("tls %s" % sock.version())
        conn = Conn(sock)
        count = 0
        while True:
            method, target, headers = conn.head()
            count += 1
            if (find(headers, "upgrade") or "").lower() == "websocket":
                websocket(conn, target, headers)
            http(conn, count, method, target, headers)
    except (Gone, OSError, ValueError):
        pass
    finally:
        sock.close()


def listen(context=None):
    server = socket.create_server(("127.0.0.1", 0), backlog=128)

    def run():
        while True:
            sock, _ = server.accept()
            threading.Thread(target=serve, args=(sock, context), daemon=True).start()

    threading.Thread(target=run, daemon=True).start()
    return server.getsockname()[1]


def contexts(folder):
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    plain.load_cert_chain(folder + "/server.crt", folder + "/server.key")
    plain.set_alpn_protocols(["h2", "http/1.1"])
    plain.sni_callback = lambda _sock, name, _context: log("sni %s" % name)
    mutual = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    mutual.load_cert_chain(folder + "/server.crt", folder + "/server.key")
    mutual.load_verify_locations(folder + "/ca.crt")
    mutual.verify_mode = ssl.CERT_REQUIRED
    return plain, mutual


def main():
    ports = [listen()]
    if len(sys.argv) > 1:
        ports += [listen(context) for context in contexts(sys.argv[1])]
    print(*ports, flush=True)
    sys.stdin.read()
    os._exit(0)


main()
