"""Somebody who is attached to an execution."""

import json
import struct

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

PROTOCOL = "podsandbox.v1"


def address(client, box, number, query=""):
    return f"ws{client.base[4:]}/v1/sandboxes/{box}/execs/{number}/attach{query and '?' + query}"


class Attached:
    """What he has seen: `out`, `err`, `messages`, and `code`, the close that came."""

    def __init__(self, client, box, number, query="", **options):
        headers = {"Authorization": f"Bearer {client.key}"} if client.key else {}
        options = {"additional_headers": headers, "subprotocols": [PROTOCOL], "max_size": None, "compression": None, "proxy": None, "ping_interval": None,
                   "open_timeout": 60, "close_timeout": 20, **options}
        self.connection = connect(address(client, box, number, query), **options)
        self.socket = self.connection.__enter__()
        self.out, self.err, self.messages, self.code = bytearray(), bytearray(), [], None
        self.gaps = []
        self.started = self.step()
        assert self.started["type"] == "started" and self.started["id"] == number

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.__exit__(None, None, None)

    def step(self, timeout=30):
        """The next message, None after the close."""
        try:
            message = self.socket.recv(timeout)
        except ConnectionClosed as closed:
            self.code = closed.rcvd.code if closed.rcvd else None
            return None
        if isinstance(message, bytes):
            assert message[0] in (1, 2) and len(message) > 1
            (self.out if message[0] == 1 else self.err).extend(message[1:])
            return message
        message = json.loads(message)
        self.messages.append(message)
        if message["type"] == "gap":
            self.gaps.append(message)
            self.out.clear()
        return message

    def shows(self, *words, since=0):
        """Reads on until all of WORDS have been shown. Where the output stands then."""
        words = [word.encode() if isinstance(word, str) else word for word in words]
        while not all(word in self.out[since:] for word in words):
            assert self.step() is not None, (words, bytes(self.out[since:])[-4000:], self.messages)
        return len(self.out)

    def told(self, kind):
        """The next message of that type."""
        while True:
            message = self.step()
            assert message is not None, (kind, self.messages, self.code)
            if isinstance(message, dict) and message["type"] == kind:
                return message

    def type(self, text):
        data = text.encode() if isinstance(text, str) else text
        for at in range(0, len(data), 65536):
            self.socket.send(b"\0" + data[at:at + 65536])

    def resize(self, columns, rows):
        self.socket.send(b"\4" + struct.pack(">HH", columns, rows))

    def say(self, kind, **more):
        self.socket.send(json.dumps({"type": kind, **more}))

    def end(self):
        """Reads to the close, which must come after an exit. The exit."""
        while self.step() is not None:
            pass
        assert self.messages[-1]["type"] == "exit" and self.code == 1000, (self.messages, self.code)
        return self.messages[-1]

    def closed(self):
        """Reads to the close: its code."""
        while self.step() is not None:
            pass
        return self.code

    def leave(self):
        self.socket.close()

    def vanish(self):
        """As if the line were cut: no close."""
        self.socket.socket.close()


def terminal(client, box, cmd, columns=80, rows=24, **body):
    """The number of a new command with a terminal."""
    cmd = ["sh", "-c", cmd] if isinstance(cmd, str) else cmd
    return client.post(f"/v1/sandboxes/{box}/execs", {"cmd": cmd, "tty": True, "cols": columns, "rows": rows, **body}, 202)["id"]
