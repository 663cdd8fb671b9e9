"""What a development server does for a browser: a page, and a WebSocket that tells it to load itself again when the source
has changed. Standard library only."""

import base64
import hashlib
import os
import socketserver
import sys
import time

PAGE = """<!doctype html><title>preview</title><body style="font:32px sans-serif;background:#fff">
<h1 id="content">%s</h1><p id="state">connecting</p>
<script>
const socket = new WebSocket(`ws://${location.host}/hmr?token=1`, 'vite-hmr');
socket.onopen = () => document.getElementById('state').textContent = 'connected';
socket.onmessage = event => event.data === 'reload' && location.reload();
</script>"""


def content():
    with open("content.txt") as file:
        return file.read()


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline().decode():
            path, headers = line.split()[1], {}
            while (header := self.rfile.readline().decode().strip()):
                name, _, value = header.partition(":")
                headers[name.lower()] = value.strip()
            if "sec-websocket-key" in headers:
                self.tell(headers)
                return
            body = (PAGE % content()).encode() if path == "/" else b""
            status = "200 OK" if body else "404 Not Found"
            self.wfile.write(f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    def tell(self, headers):
        accept = base64.b64encode(hashlib.sha1(headers["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: vite-hmr\r\n"
                         b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        before = os.stat("content.txt").st_mtime_ns
        while os.stat("content.txt").st_mtime_ns == before:
            time.sleep(0.02)  # looking at the file is how it learns of a change
        self.wfile.write(b"\x81\x06reload")
        self.rfile.read(2)


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
