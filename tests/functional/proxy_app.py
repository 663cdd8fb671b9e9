"""A program behind a preview, with the standard library only: what it answers depends on the path. It says what it got."""

import base64
import hashlib
import json
import os
import socket
import socketserver
import struct
import sys
import threading
import time

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
release = threading.Event()
connections = 0


class Handler(socketserver.StreamRequestHandler):
    wbufsize = 0
    rbufsize = 65536

    def handle(self):
        global connections
        connections += 1
        self.number = connections
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while self.one():
            pass

    # --- a request
    def one(self):
        line = self.rfile.readline()
        if not line:
            return False
        self.method, self.target, self.version = line.decode("latin-1").split()
        self.headers = []
        while (line := self.rfile.readline().decode("latin-1").rstrip("\r\n")):
            name, _, value = line.partition(":")
            self.headers.append((name, value.strip()))
        path = self.target.split("?")[0].strip("/").split("/")[0]
        return getattr(self, "do_" + path.replace("-", "_"), self.do_echo)()

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name), None)

    def body(self):
        if (self.header("transfer-encoding") or "").lower() == "chunked":
            while (size := int(self.rfile.readline().split(b";")[0], 16)):
                left = size
                while left:
                    piece = self.rfile.read(min(left, 65536))
                    left -= len(piece)
                    yield piece
                assert self.rfile.readline() == b"\r\n"
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            return
        left = int(self.header("content-length") or 0)
        while left and (piece := self.rfile.read1(min(left, 65536))):
            left -= len(piece)
            yield piece

    def reply(self, body=b"", status="200 OK", headers=(), length=True):
        lines = [f"HTTP/1.1 {status}", *headers] + ([f"Content-Length: {len(body)}"] if length else [])
        self.wfile.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (b"" if self.method == "HEAD" else body))
        return True

    # --- answers
    def do_echo(self):
        digest, size = hashlib.sha256(), 0
        for piece in self.body():
            digest.update(piece)
            size += len(piece)
        said = {"method": self.method, "target": self.target, "version": self.version, "headers": self.headers, "size": size,
                "sha256": digest.hexdigest(), "connection": self.number}
        return self.reply(json.dumps(said).encode(), headers=["Content-Type: application/json"])

    def do_unchanged(self):
        length = self.query().get("length")
        return self.reply(status="304 Not Modified", headers=['ETag: "1"', *([f"Content-Length: {length}"] if length else [])], length=False)

    def query(self):
        return dict(pair.split("=", 1) for pair in self.target.partition("?")[2].split("&") if "=" in pair)

    def do_large(self):
        """SIZE bytes by length, in chunks, or up to the end of the connection."""
        size, how = int(self.query()["size"]), self.query().get("as", "length")
        block = hashlib.sha256(b"block").digest() * 2048
        head = {"length": f"Content-Length: {size}\r\n", "chunks": "Transfer-Encoding: chunked\r\n", "end": "Connection: close\r\n"}[how]
        self.wfile.write(f"HTTP/1.1 200 OK\r\n{head}\r\n".encode())
        while size:
            piece = block[:min(size, len(block))]
            self.wfile.write(b"%x;name=value\r\n%s\r\n" % (len(piece), piece) if how == "chunks" else piece)
            size -= len(piece)
        if how == "chunks":
            self.wfile.write(b"0\r\nX-Trailer: 1\r\n\r\n")
        return how != "end"

    def do_raw(self):
        """Exactly these bytes, and then the end."""
        self.wfile.write(base64.b64decode(self.query()["bytes"].replace("%3D", "=").replace("%2B", "+").replace("%2F", "/")))
        return False

    def do_interim(self):
        """COUNT answers before the one that counts; 0: without end."""
        count = int(self.query()["count"])
        while not count:
            self.wfile.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)
        self.wfile.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * count)
        return self.reply(b"ok")

    def do_events(self):
        """One event for each line of input on the connection's path /release."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(3):
            event = b"data: %d\n\n" % number
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            release.wait(20)
            release.clear()
        self.wfile.write(b"0\r\n\r\n")
        return True

    def do_release(self):
        release.set()
        return self.reply(b"released")

    def do_early(self):
        """An answer before the body is read; then the connection is closed."""
        self.reply(b"too large", "413 Content Too Large", ["Connection: close"])
        return False

    def do_wait(self):
        """Begins its answer before it has read the request's body."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        size = sum(len(piece) for piece in self.body())
        self.wfile.write(b"%x\r\n%d\r\n0\r\n\r\n" % (len(str(size)), size))
        return True

    def do_hang(self):
        release.wait(60)
        return False

    def do_deaf(self):
        """Reads nothing of the body."""
        release.wait(60)
        return False

    def do_die(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000)
        os._exit(1)

    def do_cut(self):
        """Half of an answer, then a reset."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000)
        time.sleep(0.2)
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    # --- WebSocket
    def do_ws(self):
        key = self.header("sec-websocket-key")
        if key is None:
            return self.reply(b"upgrade, please", "426 Upgrade Required", ["Upgrade: websocket"])
        accept = base64.b64encode(hashlib.sha1(key.encode() + GUID).digest()).decode()
        lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}"]
        if self.header("sec-websocket-protocol"):
            lines.append("Sec-WebSocket-Protocol: " + self.header("sec-websocket-protocol").split(",")[0])
        hello = json.dumps({"target": self.target, "headers": self.headers}).encode()
        # in one write with the answer's head: none of it may get lost
        self.wfile.write("\r\n".join(lines).encode() + b"\r\n\r\n" + self.frame(1, hello))
        while True:
            head = self.rfile.read(2)
            if len(head) < 2:
                return False
            opcode, size = head[0] & 15, head[1] & 127
            if size == 126:
                size = struct.unpack(">H", self.rfile.read(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self.rfile.read(8))[0]
            mask = self.rfile.read(4)
            data = self.rfile.read(size)
            data = bytes(a ^ b for a, b in zip(data, (mask * (size // 4 + 1))[:size])) if size < 100000 else self.unmask(data, mask)
            if opcode == 8:
                self.wfile.write(self.frame(8, data))
                return False
            if data == b"close please":
                self.wfile.write(self.frame(8, struct.pack(">H", 4001) + b"as you wish"))
                return False
            self.wfile.write(self.frame(opcode, data))

    @staticmethod
    def unmask(data, mask):
        number = int.from_bytes(data, "big") ^ int.from_bytes((mask * (len(data) // 4 + 1))[:len(data)], "big")
        return number.to_bytes(len(data), "big")

    @staticmethod
    def frame(opcode, data):
        size = len(data)
        head = struct.pack(">BB", 0x80 | opcode, size) if size < 126 else (
            struct.pack(">BBH", 0x80 | opcode, 126, size) if size < 65536 else struct.pack(">BBQ", 0x80 | opcode, 127, size))
        return head + data


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 500

    def handle_error(self, request, client_address):
        pass


Server((sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
