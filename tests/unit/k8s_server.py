#!/usr/bin/env python3
"""A scripted API server for the tests of k8s/: answers by rules that the test gives, and logs.

Prints its port and ends when its standard input does. Control requests:
  POST /script   JSON list of rules, which replace the ones before; clears the log
  GET /log       one line per request: METHOD TARGET, and its body behind a tab
A rule: {"method", "path" (the target starts with it), "times" (default: any number), "status", "body",
"headers", "auth" (only with this Authorization), "drop" (read, then close), "lines": [objects of a watch],
"then" ("end", "cut" or "hang": until the peer goes), "ws": [steps], "protocol"}.
The first rule that fits and is not used up answers. Steps of a WebSocket, after the handshake:
  ["message", CHANNEL, TEXT], ["empty"], ["pieces", [HEX, ...]], ["close", CODE], ["cut"], ["reset"],
  ["expect", BYTES] (of stdin in all), ["echo", BYTES] (sends stdin back), ["wait"] (until the peer goes)
The text of a message may be {"repeat": TEXT, "times": N}.
"""

import base64
import hashlib
import json
import socket
import struct
import sys
import threading

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
LOCK = threading.Condition()
LOG = []
RULES = []


class Gone(Exception):
    pass


class Conn:
    def __init__(self, sock):
        self.sock = sock
        self.have = b""

    def take(self, count):
        while len(self.have) < count:
            data = self.sock.recv(65536)
            if not data:
                raise Gone()
            self.have += data
        data, self.have = self.have[:count], self.have[count:]
        return data

    def head(self):
        while b"\r\n\r\n" not in self.have:
            data = self.sock.recv(65536)
            if not data:
                raise Gone()
            self.have += data
        text, self.have = self.have.split(b"\r\n\r\n", 1)
        lines = text.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = {}
        for line in lines[1:]:
            name, value = line.split(":", 1)
            headers[name.strip().lower()] = value.strip()
        return method, target, headers


def frame(opcode, payload=b"", fin=True):
    head = bytes([(0x80 if fin else 0) | opcode])
    if len(payload) < 126:
        return head + bytes([len(payload)]) + payload
    if len(payload) < 65536:
        return head + bytes([126]) + struct.pack(">H", len(payload)) + payload
    return head + bytes([127]) + struct.pack(">Q", len(payload)) + payload


def read_frame(conn):
    first, second = conn.take(2)
    size = second & 0x7F
    if size == 126:
        (size,) = struct.unpack(">H", conn.take(2))
    elif size == 127:
        (size,) = struct.unpack(">Q", conn.take(8))
    mask = conn.take(4)
    data = conn.take(size)
    pad = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    data = (int.from_bytes(data, "big") ^ pad).to_bytes(size, "big") if size else b""
    return first & 0x0F, data


def read_stdin(conn):
    """The next message of channel 0; its size is logged if it is larger than allowed."""
    while True:
        opcode, data = read_frame(conn)
        if opcode == 8:
            conn.sock.sendall(frame(8, data))
            raise Gone()
        if opcode == 9:
            conn.sock.sendall(frame(10, data))
        if opcode == 2 and data[:1] == b"\0":
            if len(data) > 32768 + 1:
                log("oversize %d" % len(data))
            return data[1:]


def log(line):
    with LOCK:
        LOG.append(line)
        LOCK.notify_all()


def text_of(value):
    if isinstance(value, dict):
        value = value["repeat"] * value["times"]
    return value.encode()


def step(conn, what, args):
    sock = conn.sock
    if what == "message":
        sock.sendall(frame(2, bytes([args[0]]) + text_of(args[1])))
    elif what == "empty":
        sock.sendall(frame(2))
    elif what == "pieces":
        parts = [bytes.fromhex(part) for part in args[0]]
        for at, part in enumerate(parts):
            sock.sendall(frame(2 if at == 0 else 0, part, fin=at == len(parts) - 1))
    elif what == "close":
        sock.sendall(frame(8, struct.pack(">H", args[0])))
        while True:
            read_frame(conn)
    elif what == "cut":
        raise Gone()
    elif what == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Gone()
    elif what == "expect" or what == "echo":
        total = 0
        while total < args[0]:
            data = read_stdin(conn)
            total += len(data)
            if what == "echo":
                sock.sendall(frame(2, b"\1" + data))
        log("stdin %d" % total)
    elif what == "wait":
        while True:
            read_stdin(conn)


def websocket(conn, rule, headers):
    key = headers["sec-websocket-key"] + GUID
    answer = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade",
             "Sec-WebSocket-Accept: " + answer]
    protocol = rule.get("protocol", "v5.channel.k8s.io")
    if protocol:
        lines.append("Sec-WebSocket-Protocol: " + protocol)
    conn.sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    for what, *args in rule["ws"]:
        step(conn, what, args)


def answer(status, body, extra):
    if not isinstance(body, str):
        body = json.dumps(body)
    data = body.encode()
    lines = ["HTTP/1.1 %d Status" % status, "Content-Length: %d" % len(data)]
    lines += ["%s: %s" % pair for pair in extra.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + data


def watch(conn, rule):
    """Each line in two chunks."""
    conn.sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for line in rule["lines"]:
        data = (line if isinstance(line, str) else json.dumps(line)).encode() + b"\n"
        for part in (data[:5], data[5:]):
            conn.sock.sendall(b"%x\r\n" % len(part) + part + b"\r\n")
    if rule.get("then") == "hang":
        conn.take(1)
    if rule.get("then") == "cut":
        raise Gone()
    conn.sock.sendall(b"0\r\n\r\n")


def choose(method, target, headers):
    with LOCK:
        for rule in RULES:
            if rule.get("times", 1) == 0 or rule.get("method", method) != method:
                continue
            if not target.startswith(rule["path"]):
                continue
            if "auth" in rule and headers.get("authorization") != rule["auth"]:
                continue
            if ("ws" in rule) != ("upgrade" in headers) and "ws" in rule:
                continue
            if "times" in rule:
                rule["times"] -= 1
            return rule
    return {"status": 404, "body": {"kind": "Status", "reason": "NotFound", "code": 404,
                                    "message": "no rule for %s %s" % (method, target)}}


def control(conn, method, target, body):
    global RULES
    with LOCK:
        if target == "/script":
            RULES = json.loads(body)
            LOG.clear()
        text = "".join(line + "\n" for line in LOG)
    conn.sock.sendall(answer(200, text, {}))


def serve(sock):
    conn = Conn(sock)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            method, target, headers = conn.head()
            body = conn.take(int(headers.get("content-length", 0))).decode()
            if target in ("/script", "/log"):
                control(conn, method, target, body)
                continue
            rule = choose(method, target, headers)
            log(method + " " + target + ("\t" + body if body else ""))
            if rule.get("drop"):
                raise Gone()
            if "ws" in rule:
                websocket(conn, rule, headers)
                raise Gone()
            if "lines" in rule:
                watch(conn, rule)
            else:
                sock.sendall(answer(rule.get("status", 200), rule.get("body", {}), rule.get("headers", {})))
    except (Gone, OSError):
        pass
    finally:
        sock.close()


def main():
    server = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(server.getsockname()[1], flush=True)

    def run():
        while True:
            sock, _ = server.accept()
            threading.Thread(target=serve, args=(sock,), daemon=True).start()

    threading.Thread(target=run, daemon=True).start()
    sys.stdin.read()


main()
