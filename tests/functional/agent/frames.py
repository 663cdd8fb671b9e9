"""A small client of agent/proto.h, for tests that drive the real program. It can also misbehave."""

import os
import re
import socket
import struct
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def _enum_values():
    """The numbers of agent/proto.h, so that they are written down once."""
    text = "".join((ROOT / "agent" / name).read_text() for name in ("proto.h", "proto_op.h", "proto_tag.h"))
    return {name: int(value) for name, value in re.findall(r"^\s+((?:FRAME|OP|TAG)_\w+)\s+=\s+(\d+),", text, re.M)}


NUMBERS = _enum_values()
NAMES = {value: name[4:].lower() for name, value in NUMBERS.items() if name.startswith("TAG_")}
TEXTS = {
    "agent", "error", "message", "exec_id", "arg", "env", "workdir", "etag", "type", "if_match", "server", "uid",
}
BYTES = {"token", "blob", "path", "link", "root", "to", "old", "new"}
LISTS = {"exec_id", "arg", "env"}
WINDOW = 32 << 10
PAYLOAD_MAX = 32768
TOKEN = bytes(range(32))


def frame_type(name):
    return NUMBERS["FRAME_" + name]


TYPE_NAMES = {value: name[6:] for name, value in NUMBERS.items() if name.startswith("FRAME_")}


def pack_fields(fields):
    out = bytearray()
    for name, value in fields:
        tag = NUMBERS["TAG_" + name.upper()]
        if isinstance(value, bool):
            value = struct.pack("<B", value)
        elif isinstance(value, int):
            value = struct.pack("<Q", value)
        elif isinstance(value, str):
            value = os.fsencode(value)
        out += struct.pack("<HI", tag, len(value)) + value
    return bytes(out)


def unpack_fields(data):
    fields, at = {}, 0
    while at < len(data):
        tag, length = struct.unpack_from("<HI", data, at)
        raw = data[at + 6 : at + 6 + length]
        assert len(raw) == length, "a field is cut"
        at += 6 + length
        name = NAMES.get(tag, f"tag{tag}")
        if name in BYTES:
            value = bytes(raw)
        elif name in TEXTS:
            value = raw.decode("utf-8", "surrogateescape")
        else:
            value = int.from_bytes(raw, "little")
        if name in LISTS:
            fields.setdefault(name, []).append(value)
        else:
            fields[name] = value
    return fields


def pack_frame(channel, kind, payload=b""):
    return struct.pack("<IIB", len(payload), channel, kind) + payload


class StreamClosed(Exception):
    pass


class Frame:
    def __init__(self, channel, kind, payload):
        self.channel, self.kind, self.payload = channel, kind, payload
        self.name = TYPE_NAMES.get(kind, str(kind))

    @property
    def fields(self):
        return unpack_fields(self.payload)

    def __repr__(self):
        return f"<{self.name} on {self.channel}, {len(self.payload)} bytes>"


class Client:
    """One stream. `reader` and `writer` are descriptors (a socket gives the same one twice)."""

    def __init__(self, reader, writer, keep=None, timeout=20):
        self.reader, self.writer, self.keep, self.timeout = reader, writer, keep, timeout
        self.buffer = bytearray()
        self.waiting = []  # frames of other channels
        self.next_channel = 1
        self.parts = {}

    @classmethod
    def connect(cls, path, timeout=20):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(path))
        return cls(sock.fileno(), sock.fileno(), sock, timeout)

    def close(self):
        if isinstance(self.keep, socket.socket):
            self.keep.close()
        else:
            os.close(self.writer)
            os.close(self.reader)

    # --- frames

    def send_raw(self, data):
        view = memoryview(data)
        while view:
            view = view[os.write(self.writer, view) :]

    def send(self, channel, name, fields=(), payload=None):
        data = pack_fields(fields) if payload is None else payload
        while len(data) > PAYLOAD_MAX:
            self.send_raw(pack_frame(channel, frame_type("PART"), data[:PAYLOAD_MAX]))
            data = data[PAYLOAD_MAX:]
        self.send_raw(pack_frame(channel, frame_type(name), data))

    def data(self, channel, stream, offset, data):
        self.send(channel, "DATA", payload=struct.pack("<BQ", stream, offset) + data)

    def end(self, channel, stream, total):
        self.send(channel, "END", payload=struct.pack("<BQ", stream, total))

    def credit(self, channel, stream, done, limit):
        self.send(channel, "CREDIT", payload=struct.pack("<BQQ", stream, done, limit))

    def _receive(self, deadline):
        import select

        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self.reader], [], [], left)[0]:
            raise TimeoutError("nothing came from the agent")
        try:
            data = os.read(self.reader, 1 << 18)
        except ConnectionResetError:
            data = b""
        if not data:
            raise StreamClosed()
        self.buffer += data

    def next_frame(self, timeout=None):
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            if len(self.buffer) >= 9:
                length, channel, kind = struct.unpack_from("<IIB", self.buffer)
                assert length <= PAYLOAD_MAX
                if len(self.buffer) >= 9 + length:
                    payload = bytes(self.buffer[9 : 9 + length])
                    del self.buffer[: 9 + length]
                    if kind == frame_type("PART"):
                        self.parts[channel] = self.parts.get(channel, b"") + payload
                        continue
                    return Frame(channel, kind, self.parts.pop(channel, b"") + payload)
            self._receive(deadline)

    def frame_of(self, channel, timeout=None):
        for i, frame in enumerate(self.waiting):
            if frame.channel == channel:
                return self.waiting.pop(i)
        while True:
            frame = self.next_frame(timeout)
            if frame.channel == channel:
                return frame
            self.waiting.append(frame)

    # --- the connection

    def hello(self, token=TOKEN, **more):
        self.send(0, "HELLO", [("version", 1), ("token", token), *more.items()])
        frame = self.frame_of(0)
        assert frame.name == "HELLO_OK", (frame, frame.fields)
        return frame.fields

    def configure(self, env=None, **fields):
        items = [("seq", 7), *fields.items()]
        if env is not None:
            items += [("env_set", 1)] + [("env", e) for e in env]
        self.send(0, "CONFIGURE", items)
        frame = self.frame_of(0)
        assert frame.name == "CONFIGURED" and frame.fields["seq"] == 7
        return frame.fields

    def open(self, op, fields):
        channel = self.next_channel
        self.next_channel += 1
        self.send(channel, "OPEN", [("op", NUMBERS["OP_" + op]), *fields])
        return channel

    # --- operations

    def start(self, *cmd, exec_id=None, env=(), stdin=False, offset_out=0, offset_err=0, **fields):
        exec_id = exec_id or f"x{time.monotonic_ns()}"
        items = [("exec_id", exec_id)] + [("arg", a) for a in cmd] + [("env", e) for e in env]
        items += [("stdin", stdin), ("offset_out", offset_out), ("offset_err", offset_err), *fields.items()]
        run = Run(self, self.open("EXEC", items), exec_id, offset_out, offset_err)
        return run

    def run(self, *cmd, input=None, timeout=None, **fields):
        run = self.start(*cmd, stdin=input is not None, **fields)
        if input is not None:
            run.feed(input)
        run.finish(timeout)
        run.commit()
        return run

    def request(self, op, *fields, timeout=None):
        """A request that is answered by RESULT alone."""
        channel = self.open(op, fields)
        frame = self.frame_of(channel, timeout)
        assert frame.name == "RESULT", frame
        return frame.fields

    def read(self, path, *fields):
        channel = self.open("READ", [("path", path), *fields])
        first = self.frame_of(channel)
        if first.name == "RESULT":
            return first.fields, None
        assert first.name == "STARTED"
        content, result = self.collect(channel)
        return {**first.fields, **result}, content

    def tree(self, path, *fields):
        channel = self.open("TREE", [("path", path), *fields])
        content, result = self.collect(channel)
        entries, at = [], 0
        while at < len(content):
            (length,) = struct.unpack_from("<I", content, at)
            entries.append(unpack_fields(content[at + 4 : at + 4 + length]))
            at += 4 + length
        return result, entries

    def collect(self, channel):
        content = bytearray()
        ended = False
        while True:
            frame = self.frame_of(channel)
            if frame.name == "RESULT":
                assert ended or "error" in frame.fields
                return bytes(content), frame.fields
            stream, offset = struct.unpack_from("<BQ", frame.payload)
            assert stream == 1 and offset == len(content) and not ended
            content += frame.payload[9:]
            if frame.name == "END":
                ended = True
            else:
                self.credit(channel, 1, len(content), len(content) + (1 << 20))

    def write(self, path, content, *fields, size=True, end=True):
        items = [("path", path), *fields] + ([("size", len(content))] if size else [])
        channel = self.open("WRITE", items)
        sender = Sender(self, channel, content)
        while True:
            if sender.step() and end:
                self.end(channel, 0, len(content))
                end = False
            frame = self.frame_of(channel)
            if frame.name == "RESULT":
                return frame.fields
            sender.on_credit(frame)


class Sender:
    """Sends bytes on stream 0 as far as there is credit."""

    def __init__(self, client, channel, content, start=0):
        self.client, self.channel, self.content = client, channel, content
        self.at, self.limit = start, start + WINDOW

    def step(self):
        """True when all is sent."""
        while self.at < min(self.limit, len(self.content)):
            piece = self.content[self.at : min(self.at + PAYLOAD_MAX - 9, self.limit)]
            self.client.data(self.channel, 0, self.at, piece)
            self.at += len(piece)
        return self.at >= len(self.content)

    def on_credit(self, frame):
        assert frame.name == "CREDIT", frame
        stream, done, limit = struct.unpack("<BQQ", frame.payload)
        assert stream == 0 and done <= self.at and limit >= self.limit
        self.limit = limit


class Run:
    """One exec on one channel."""

    def __init__(self, client, channel, exec_id, offset_out=0, offset_err=0):
        self.client, self.channel, self.exec_id = client, channel, exec_id
        self.out, self.err = bytearray(), bytearray()
        self.offsets = {1: offset_out, 2: offset_err}
        self.ended = set()
        self.started = self.result = self.sender = None
        self.window = 1 << 20
        self.auto_credit = True
        self.hold = 0  # so many of the bytes that came are not acknowledged yet

    def feed(self, content, start=0):
        self.sender = Sender(self.client, self.channel, content, start)

    def step(self, timeout=None):
        """Handles one frame."""
        if self.sender is not None and self.sender.step():
            self.client.end(self.channel, 0, len(self.sender.content))
            self.sent_all, self.sender = True, None
        frame = self.client.frame_of(self.channel, timeout)
        if frame.name == "STARTED":
            self.started = frame.fields
            self.offsets = {1: self.started["offset_out"], 2: self.started["offset_err"]}
        elif frame.name == "DATA":
            stream, offset = struct.unpack_from("<BQ", frame.payload)
            assert offset == self.offsets[stream] and stream not in self.ended
            (self.out if stream == 1 else self.err).extend(frame.payload[9:])
            self.offsets[stream] += len(frame.payload) - 9
            if self.auto_credit:
                self.grant(stream)
        elif frame.name == "END":
            stream, offset = struct.unpack("<BQ", frame.payload)
            assert offset == self.offsets[stream]
            self.ended.add(stream)
        elif frame.name == "CREDIT":
            if self.sender is not None:
                self.sender.on_credit(frame)
        elif frame.name == "RESULT":
            self.result = frame.fields
            if self.result.get("error") not in ("not_found", "invalid_field", "busy", "cancelled"):
                assert self.ended == {1, 2}
        return frame

    def grant(self, stream):
        offset = self.offsets[stream]
        self.client.credit(self.channel, stream, max(0, offset - self.hold), offset + self.window)

    def until(self, condition, timeout=None):
        while not condition(self):
            self.step(timeout)
        return self

    def wait_started(self):
        return self.until(lambda run: run.started or run.result)

    def finish(self, timeout=None):
        self.until(lambda run: run.result is not None, timeout)
        return self.result

    def commit(self):
        self.client.send(self.channel, "COMMIT")

    def signal(self, **fields):
        self.client.send(self.channel, "SIGNAL", fields.items())
