"""Connections to ports inside the sandbox."""

import hashlib
import os

import pytest

from conftest import wait_for
from frames import WINDOW

SERVER = """
import socket, sys, threading
mode, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
family = socket.AF_INET6 if ':' in host else socket.AF_INET
s = socket.socket(family)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((host, port))
s.listen(500)
def serve(c):
    if mode == 'echo':
        while piece := c.recv(65536):
            c.sendall(piece)
    elif mode == 'collect':
        data = b''
        while piece := c.recv(65536):
            data += piece
        c.sendall(b'<' + data + b'>')
    elif mode == 'refuse':
        c.sendall(b'no, thank you')
        c.shutdown(socket.SHUT_RD)
        c.shutdown(socket.SHUT_WR)
    elif mode == 'reset':
        import struct
        c.recv(1)
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    elif mode == 'deaf':
        threading.Event().wait()
    c.close()
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"""


def serve(client, agent, mode, address="127.0.0.1", port=8000):
    wait_for(lambda: os.system(f"nsenter -t {agent.pid} -n ip link set lo up") == 0, "loopback")
    client.start("python3", "-c", SERVER, mode, address, str(port))
    assert client.request("PORT_WAIT", ("port", port), ("timeout_ms", 10000))["ready"] == 1


class Dial:
    def __init__(self, client, port=8000, **fields):
        self.client = client
        self.channel = client.open("DIAL", [("port", port), *fields.items()])
        self.sent, self.done, self.limit = 0, 0, WINDOW
        self.got, self.ended, self.result, self.started = bytearray(), None, None, False

    def send(self, data):
        """As far as credit allows; waits for more."""
        while data:
            while self.limit == self.sent:
                self.step()
            piece = data[:min(32000, self.limit - self.sent)]
            self.client.data(self.channel, 0, self.sent, piece)
            self.sent += len(piece)
            data = data[len(piece):]

    def end(self):
        self.client.end(self.channel, 0, self.sent)

    def cancel(self):
        self.client.send(self.channel, "CANCEL")

    def step(self, credit=True):
        frame = self.client.frame_of(self.channel)
        if frame.name == "STARTED":
            self.started = True
        elif frame.name == "DATA":
            assert frame.payload[0] == 1 and int.from_bytes(frame.payload[1:9], "little") == len(self.got)
            self.got += frame.payload[9:]
            if credit:
                self.client.credit(self.channel, 1, len(self.got), len(self.got) + WINDOW)
        elif frame.name == "END":
            self.ended = int.from_bytes(frame.payload[1:9], "little")
        elif frame.name == "CREDIT":
            self.done, self.limit = (int.from_bytes(frame.payload[at:at + 8], "little") for at in (1, 9))
        else:
            assert frame.name == "RESULT", frame
            self.result = frame.fields
        return frame

    def until(self, condition, **options):
        while not condition():
            self.step(**options)
        return self


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_bytes_both_ways_and_half_closes(client, agent, address):
    serve(client, agent, "collect", address)
    dial = Dial(client)
    dial.send(b"hello ")  # before it is known whether anybody listens
    dial.until(lambda: dial.started)
    dial.send(b"there")
    dial.end()
    dial.until(lambda: dial.result is not None)
    assert bytes(dial.got) == b"<hello there>" and dial.ended == 13 and "error" not in dial.result


def test_a_large_stream_is_exact(client, agent):
    serve(client, agent, "echo")
    dial, data = Dial(client), os.urandom(8 << 20)
    for at in range(0, len(data), 65536):
        dial.send(data[at:at + 65536])
        dial.until(lambda: len(dial.got) > dial.sent - 32768)
    dial.end()
    dial.until(lambda: dial.result is not None)
    assert hashlib.sha256(dial.got).digest() == hashlib.sha256(data).digest() and dial.ended == len(data)


@pytest.mark.parametrize("port", [8001, 40000])
def test_nobody_listens(client, agent, port):
    assert os.system(f"nsenter -t {agent.pid} -n ip link set lo up") == 0
    for _ in range(50):  # the kernel must not give it itself as the other end
        dial = Dial(client, port)
        dial.until(lambda: dial.result is not None)
        assert dial.result["error"] == "port_closed" and str(port) in dial.result["message"] and not dial.started


@pytest.mark.parametrize("fields", [{"port": 0}, {"port": 65536}, {}, {"port": 80, "timeout_ms": 1 << 40}])
def test_bad_requests(client, fields):
    channel = client.open("DIAL", fields.items())
    assert client.frame_of(channel).fields["error"] == "invalid_field"


def test_a_program_that_reads_no_more_still_answers(client, agent):
    serve(client, agent, "refuse")
    dial = Dial(client)
    dial.send(os.urandom(1 << 20))
    dial.end()
    dial.until(lambda: dial.result is not None)
    assert bytes(dial.got) == b"no, thank you" or dial.result.get("error") == "service_failed", dial.result


def test_a_reset_is_told(client, agent):
    serve(client, agent, "reset")
    dial = Dial(client)
    dial.send(b"x" * 1000)
    dial.until(lambda: dial.result is not None)
    assert dial.result["error"] == "service_failed"


def test_credit_holds_both_ways(client, agent):
    serve(client, agent, "echo")
    dial = Dial(client)
    dial.send(os.urandom(WINDOW))
    dial.until(lambda: len(dial.got) == WINDOW, credit=False)
    dial.send(os.urandom(1000))
    dial.until(lambda: dial.done == WINDOW + 1000 or dial.limit > WINDOW, credit=False)
    other = Dial(client)  # the stream is not held up
    other.send(b"quick")
    other.until(lambda: bytes(other.got) == b"quick")
    assert len(dial.got) == WINDOW
    client.credit(dial.channel, 1, WINDOW, WINDOW + 1000)
    dial.until(lambda: len(dial.got) == WINDOW + 1000)


def test_a_program_that_does_not_read_bounds_what_is_sent(client, agent):
    serve(client, agent, "deaf")
    dial = Dial(client)
    dial.until(lambda: dial.started)
    while True:  # until nothing is granted any more: the kernel's buffers and one window are full
        dial.send(b"x" * (dial.limit - dial.sent))
        try:
            client.timeout = 1
            dial.until(lambda: dial.limit > dial.sent)
        except TimeoutError:
            break
    client.timeout = 20
    assert dial.sent < 16 << 20
    dial.cancel()
    dial.until(lambda: dial.result is not None)
    assert dial.result["error"] == "cancelled"


@pytest.mark.parametrize("offset", [1, 1 << 40])
def test_a_hole_breaks_the_stream(client, agent, offset):
    serve(client, agent, "deaf")
    channel = client.open("DIAL", [("port", 8000)])
    client.data(channel, 0, offset, b"x")
    while (frame := client.next_frame()).channel != 0:
        pass
    assert frame.name == "BYE" and frame.fields["error"] == "invalid_request"


def test_many_at_once_and_none_is_left(client, agent):
    serve(client, agent, "echo")
    before = len(os.listdir(f"/proc/{agent.pid}/fd"))
    processes = set(agent.processes())
    dials = [Dial(client) for _ in range(200)]
    for number, dial in enumerate(dials):
        dial.send(b"%d" % number)
    for number, dial in enumerate(dials):
        dial.until(lambda: bytes(dial.got) == b"%d" % number)
    assert set(agent.processes()) <= processes  # it costs none
    for dial in dials[:100]:
        dial.cancel()
        dial.until(lambda: dial.result is not None)
    client.close()
    agent.clients.remove(client)
    # with the stream go its connections
    wait_for(lambda: len(os.listdir(f"/proc/{agent.pid}/fd")) < before, "closed descriptors")


def test_too_many(client, agent):
    serve(client, agent, "deaf")
    dials = [Dial(client) for _ in range(1030)]
    refused = 0
    for dial in dials:
        dial.until(lambda: dial.started or dial.result is not None)
        refused += dial.result is not None and dial.result["error"] == "busy"
    assert refused == 6
