"""pods/exec of the fake API server: a WebSocket with channels, whose far end is a process in the pod's container.

What a test wants to go wrong at the handshake is an ExecFault; what goes wrong later is done to the live ExecStream."""

import json
import os
import subprocess
import threading
from dataclasses import dataclass, field

from fake_http import Closed
from fake_websocket import BINARY, WebSocket, frame, upgrade_head

STDIN, STDOUT, STDERR, STATUS, CLOSE_CHANNEL = 0, 1, 2, 3, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
SUCCESS = {"metadata": {}, "status": "Success"}


@dataclass
class ExecFault:
    """How one exec (or `times` of them) goes wrong."""

    refuse: tuple = None  # (status, body, content type): an answer that is no upgrade
    reset: bool = False  # TCP RST instead of an answer
    hang: threading.Event = None  # no answer before it is set
    accept: str = None  # a wrong Sec-WebSocket-Accept
    protocol: str = "offered"  # what is said to be chosen; None: none
    split_head: bool = False  # the 101 one byte at a time
    with_head: bytes = b""  # bytes in the same write as the 101
    run: bool = True  # False: no process behind it; the test plays the agent
    shape: object = None  # shape(frame payload) -> list of byte strings to be written one by one
    times: int = 1
    used: int = 0
    streams: list = field(default_factory=list)

    def answer_refusal(self, connection):
        status, body, kind = self.refuse
        headers = {"Location": "http://127.0.0.1:1/elsewhere"} if status in (301, 302, 307) else {}
        connection.send_reply(status, body, headers, content_type=kind)


def one_byte_messages(payload):
    """Each byte of output in a message of its own."""
    return [frame(BINARY, payload[:1] + payload[i:i + 1]) for i in range(1, len(payload))] or [frame(BINARY, payload)]


def one_byte_writes(payload):
    whole = frame(BINARY, payload)
    return [whole[i:i + 1] for i in range(len(whole))]


def fragments(payload):
    """One message in three frames, with a ping between them."""
    third = max(1, len(payload) // 3)
    return [frame(BINARY, payload[:third], final=False), frame(9, b"between"),
            frame(0, payload[third:2 * third], final=False), frame(0, payload[2 * third:])]


class ExecStream:
    def __init__(self, connection, request, pod, container, fault):
        self.connection, self.request = connection, request
        self.pod, self.container, self.fault = pod, container, fault
        self.command = request.params("command")
        self.socket = WebSocket(connection)
        self.protocol = None
        self.process = None
        self.open = threading.Event()
        self.over = threading.Event()
        self.received = bytearray()  # channel 0, when no process takes it
        self.received_bytes = 0
        self.sent = 0  # bytes of channel 1
        self.shape = fault.shape
        self.output = threading.Event()  # clear: output is held back
        self.output.set()
        self.changed = threading.Condition()
        self.lacks = None  # why there is no process to be had
        self.trap = None  # (count of channel-1 bytes, action)

    # --- what tests do to it --------------------------------------------------
    def send_channel(self, channel, data):
        payload = bytes([channel]) + data
        pieces = self.shape(payload) if self.shape else [frame(BINARY, payload)]
        with self.socket.lock:
            for piece in pieces:
                self.socket.send_raw(piece)

    def send_status(self, status):
        self.send_channel(STATUS, status if isinstance(status, bytes) else json.dumps(status).encode())

    def close(self, code=1000, reason=b""):
        """A WebSocket close without a status before it, and then the connection's end."""
        self._quietly(lambda: self.socket.send_close(code, reason))
        self.connection.finish()

    def reset(self):
        self.connection.reset()

    def finish(self):
        """TCP FIN without a WebSocket close."""
        self.connection.finish()

    def silence(self):
        """Nothing is sent any more, pongs included."""
        self.socket.silent.set()

    def cut_after(self, count, action):
        """Calls action(stream) once COUNT more bytes of output have been passed on, and passes on no more."""
        self.trap = (self.sent + count, action)

    def wait_received(self, predicate, timeout=10):
        with self.changed:
            return self.changed.wait_for(lambda: predicate(bytes(self.received)), timeout)

    # --- how it runs ----------------------------------------------------------
    def serve(self):
        fault = self.fault
        if fault.hang:
            fault.hang.wait()
        if fault.reset:
            self.connection.reset()
            raise Closed("reset as scripted")
        if fault.refuse:
            fault.answer_refusal(self.connection)
            raise Closed("refused as scripted")
        self._upgrade()
        if self.lacks:
            self._fail()
        try:
            self._bridge()
        finally:
            self.over.set()
            self._end_process()
        raise Closed("the exec is over")

    def _upgrade(self):
        offered = [name.strip() for name in self.request.headers.get("sec-websocket-protocol", "").split(",")]
        self.protocol = next((name for name in self.protocols if name in offered), None)
        if self.lacks and self.protocol != PROTOCOLS[0]:
            self.connection.send_reply(500, self.lacks.encode(), content_type="text/plain")
            raise Closed("no container")
        said = self.protocol if self.fault.protocol == "offered" else self.fault.protocol
        head = upgrade_head(self.request, said, self.fault.accept) + self.fault.with_head
        if self.fault.split_head:
            for i in range(len(head)):
                self.connection.send(head[i:i + 1])
        else:
            self.connection.send(head)
        if not self.fault.with_head:
            self.send_channel(STDOUT, b"")  # as the real one does, to say that it is there

    def _fail(self):
        """There is no such container (yet). To v5 the API server says it on channel 3, since it has said 101 already; with v4
        the node says it instead of the 101 (see _upgrade)."""
        self.send_status({"metadata": {}, "status": "Failure", "message": "Internal error occurred: " + self.lacks,
                          "reason": "InternalError", "details": {"causes": [{"message": self.lacks}]}, "code": 500})
        self.close()
        raise Closed("no container")

    def _bridge(self):
        if self.fault.run:
            pipe = subprocess.PIPE
            self.process = self.container.enter(self.command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
            for channel, source in ((STDOUT, self.process.stdout), (STDERR, self.process.stderr)):
                threading.Thread(target=self._pump, args=(channel, source), daemon=True).start()
        self.open.set()
        for _, message in self.socket.messages():
            if not message:
                continue
            self._take(message[0], message[1:])
        self._quietly(lambda: self.socket.send_close(1000))

    def _take(self, channel, data):
        if channel == CLOSE_CHANNEL:
            assert self.protocol == PROTOCOLS[0], "v4 has no channel 255"
            if self.process and data == bytes([STDIN]):
                self.process.stdin.close()
            return
        assert channel == STDIN, f"the client sent on channel {channel}"
        with self.changed:
            self.received_bytes += len(data)
            if self.process is None:
                self.received += data
            self.changed.notify_all()
        if self.process:
            try:
                while data:
                    data = data[self.process.stdin.write(data):]
            except (OSError, ValueError):
                pass  # it reads no more; its status follows

    def _pump(self, channel, source):
        """What the process prints goes out; after the last byte of stdout, the status."""
        try:
            while data := os.read(source.fileno(), 1 << 15):
                self.output.wait()
                if channel == STDOUT and not self._pass_trap(data):
                    return
                self.send_channel(channel, data)
                self.sent += len(data) if channel == STDOUT else 0
            if channel == STDOUT:
                self._finish()
        except (Closed, OSError, ValueError):
            pass

    def _pass_trap(self, data):
        if self.trap is None or self.sent + len(data) < self.trap[0]:
            return True
        count, action = self.trap
        self.send_channel(STDOUT, data[:count - self.sent])
        self.sent = count
        action(self)
        return False

    def _finish(self):
        code = self.process.wait()
        code = code if code >= 0 else 128 - code
        if code == 0:
            self.send_status(SUCCESS)
        else:
            self.send_status(exit_status(code))
        self.socket.send_close(1000)
        self.connection.finish()

    def _end_process(self):
        if self.process is None:
            return
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            self._quietly(pipe.close)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @staticmethod
    def _quietly(action):
        try:
            action()
        except (Closed, OSError, ValueError):
            pass


def exit_status(code):
    return {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": f"command terminated with non-zero exit code: exit status {code}",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}}
