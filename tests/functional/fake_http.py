"""HTTP/1.1 on bare sockets, one thread per connection: so little that every way of breaking it can be scripted."""

import json
import os
import select
import socket
import struct
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit


class Closed(Exception):
    """The peer, or a script, has ended the connection."""


@dataclass
class Request:
    method: str
    target: str
    headers: dict  # lower-case names
    body: bytes = b""
    path: str = ""
    query: list = field(default_factory=list)

    def __post_init__(self):
        parts = urlsplit(self.target)
        self.path = unquote(parts.path)
        self.query = parse_qsl(parts.query, keep_blank_values=True)

    def param(self, name, default=None):
        return next((value for key, value in self.query if key == name), default)

    def params(self, name):
        return [value for key, value in self.query if key == name]

    def json(self):
        return json.loads(self.body) if self.body else None


class Connection:
    """Any thread may end it. The kernel sends a RST only once no thread sits in a call on the socket, so all waiting is done
    together with an eventfd that ends it."""

    def __init__(self, sock):
        self.sock = sock
        self.buffer = b""
        self.dead = False
        self.idle_limit = None  # seconds without a byte of the other side after which it ends, as in a proxy
        self.wake = os.eventfd(0)
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __del__(self):
        os.close(self.wake)

    def _wait(self, events):
        poller = select.poll()
        poller.register(self.wake, select.POLLIN)
        if not self.dead:
            poller.register(self.sock.fileno(), events)
            limit = self.idle_limit if events == select.POLLIN else None
            if not poller.poll(limit and limit * 1000):
                self.reset()
        if self.dead:
            raise Closed("ended by a script")

    def _retry(self, events, call):
        while True:
            try:
                if self.dead:
                    raise Closed("ended by a script")
                return call()
            except BlockingIOError:
                self._wait(events)
            except (OSError, ValueError) as error:
                raise Closed(str(error)) from error

    # --- reading -------------------------------------------------------------
    def fill(self):
        data = self._retry(select.POLLIN, lambda: self.sock.recv(1 << 18, socket.MSG_DONTWAIT))
        if not data:
            raise Closed("end of stream")
        self.buffer += data

    def read_exactly(self, size):
        if size <= len(self.buffer):
            data, self.buffer = self.buffer[:size], self.buffer[size:]
            return data
        parts, have = [self.buffer], len(self.buffer)
        self.buffer = b""
        while have < size:
            self.fill()
            parts.append(self.buffer)
            have += len(self.buffer)
            self.buffer = b""
        data = b"".join(parts)
        self.buffer = data[size:]
        return data[:size]

    def read_line(self):
        while b"\r\n" not in self.buffer:
            self.fill()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line.decode("latin-1")

    def read_request(self):
        method, target, _ = self.read_line().split(" ", 2)
        headers = {}
        while line := self.read_line():
            name, value = line.split(":", 1)
            assert name.lower() not in headers, f"{name} comes twice"
            headers[name.lower()] = value.strip()
        if headers.get("expect", "").lower() == "100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = b""
            while size := int(self.read_line(), 16):
                body += self.read_exactly(size)
                self.read_line()
            self.read_line()
        else:
            body = self.read_exactly(int(headers.get("content-length", 0)))
        return Request(method, target, headers, body)

    # --- writing -------------------------------------------------------------
    def send(self, data):
        data = memoryview(data)
        while data:
            data = data[self._retry(select.POLLOUT, lambda: self.sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)):]

    def send_reply(self, status, body=b"", headers=None, content_type="application/json"):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.send(reply_head(status, {"Content-Type": content_type, "Content-Length": len(body), **(headers or {})}) + body)

    def begin_chunked(self, status=200, headers=None):
        self.send(reply_head(status, {"Content-Type": "application/json", "Transfer-Encoding": "chunked", **(headers or {})}))

    def send_chunk(self, data):
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def end_chunked(self):
        self.send(b"0\r\n\r\n")

    # --- ends ----------------------------------------------------------------
    def reset(self):
        """TCP RST."""
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
        self._end()

    def finish(self):
        """TCP FIN, while still reading."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        if not self.dead:
            try:
                self.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._end()

    def _end(self):
        self.dead = True
        os.eventfd_write(self.wake, 1)
        self.sock.close()


def reply_head(status, headers):
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Status"
    lines = [f"HTTP/1.1 {status} {phrase}"] + [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class HttpServer:
    """Calls handle(connection, request) on the connection's thread, for each request of it."""

    def __init__(self, host="127.0.0.1"):
        self.address = (host, 0)
        self.listener = None
        self.connections = set()
        self.lock = threading.Lock()
        self.start()

    def start(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(self.address)
        self.address = self.listener.getsockname()
        self.listener.listen(512)
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def stop(self):
        """Nothing answers any more; start() makes it answer again, at the same port."""
        listener, self.listener = self.listener, None
        if listener:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.drop_connections()

    def drop_connections(self):
        with self.lock:
            connections = list(self.connections)
        for connection in connections:
            connection.close()

    @property
    def port(self):
        return self.address[1]

    def _accept(self, listener):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            connection = Connection(sock)
            with self.lock:
                self.connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        try:
            while True:
                request = connection.read_request()
                self.handle(connection, request)
        except (Closed, OSError):
            pass
        finally:
            connection.close()
            with self.lock:
                self.connections.discard(connection)

    def handle(self, connection, request):
        raise NotImplementedError
