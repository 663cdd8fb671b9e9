"""The server's side of RFC 6455, frame by frame."""

import base64
import hashlib
import struct
import threading

from fake_http import Closed, reply_head

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def accept_key(key):
    return base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()


def frame(opcode, payload, final=True):
    head = bytes([(0x80 if final else 0) | opcode])
    if len(payload) < 126:
        head += bytes([len(payload)])
    elif len(payload) < 1 << 16:
        head += struct.pack(">BH", 126, len(payload))
    else:
        head += struct.pack(">BQ", 127, len(payload))
    return head + payload


def upgrade_head(request, protocol, accept=None):
    headers = {"Upgrade": "websocket", "Connection": "Upgrade",
               "Sec-WebSocket-Accept": accept or accept_key(request.headers["sec-websocket-key"])}
    if protocol:
        headers["Sec-WebSocket-Protocol"] = protocol
    return reply_head(101, headers)


class WebSocket:
    def __init__(self, connection):
        self.connection = connection
        self.lock = threading.RLock()
        self.silent = threading.Event()
        self.pongs = []
        self.pings = 0  # from the client
        self.answers_pings = True
        self.largest = 0  # frame of the client
        self.close_code = None
        self.changed = threading.Condition()

    def send_raw(self, data):
        with self.lock:
            if self.silent.is_set():
                return
            self.connection.send(data)

    def send(self, opcode, payload):
        self.send_raw(frame(opcode, payload))

    def send_close(self, code, reason=b""):
        self.send(CLOSE, struct.pack(">H", code) + reason)

    def ping(self, payload, timeout=5):
        """True when the pong with that payload came in time."""
        self.send(PING, payload)
        with self.changed:
            return self.changed.wait_for(lambda: payload in self.pongs, timeout)

    def _read_frame(self):
        first, second = self.connection.read_exactly(2)
        length = second & 0x7F
        assert second & 0x80, "a frame of the client is not masked"
        if length == 126:
            (length,) = struct.unpack(">H", self.connection.read_exactly(2))
        elif length == 127:
            (length,) = struct.unpack(">Q", self.connection.read_exactly(8))
        mask = self.connection.read_exactly(4)
        payload = self.connection.read_exactly(length)
        self.largest = max(self.largest, length)
        return first & 0x80, first & 0x0F, unmask(payload, mask)

    def messages(self):
        """(opcode, payload) of each data message, until the client closes."""
        opcode, parts = None, []
        while True:
            final, code, payload = self._read_frame()
            if code == PING:
                self.pings += 1
                if self.answers_pings:
                    self.send(PONG, payload)
            elif code == PONG:
                with self.changed:
                    self.pongs.append(payload)
                    self.changed.notify_all()
            elif code == CLOSE:
                self.close_code = struct.unpack(">H", payload[:2])[0] if len(payload) >= 2 else 1005
                return
            else:
                opcode = code or opcode
                parts.append(payload)
                if final:
                    yield opcode, b"".join(parts)
                    opcode, parts = None, []


def unmask(payload, mask):
    size = len(payload)
    whole = int.from_bytes(payload, "little") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "little")
    return whole.to_bytes(size, "little")


__all__ = ["WebSocket", "frame", "upgrade_head", "Closed", "TEXT", "BINARY", "CLOSE", "PING", "PONG"]
