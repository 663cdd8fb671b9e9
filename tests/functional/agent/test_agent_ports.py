"""Waiting for ports and forwarding them."""

import os
import socket
import subprocess

import pytest

from conftest import wait_for

SERVER = """
import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
s = socket.socket(family)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((sys.argv[1], int(sys.argv[2])))
s.listen(200)
import threading
def serve(c):
    data = b''
    while (piece := c.recv(65536)):
        data += piece
    c.sendall(b'<' + data + b'>')
    c.close()
while True:
    threading.Thread(target=serve, args=(s.accept()[0],)).start()
"""


@pytest.fixture
def net(client, agent):
    """The sandbox has the address 10.77.0.2, the host 10.77.0.1."""
    name = f"ag{os.getpid() % 100000}"
    host = ["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(agent.pid)]
    subprocess.run(host, check=True)
    subprocess.run(["ip", "addr", "add", "10.77.0.1/24", "dev", name], check=True)
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
    inside = ["nsenter", "-t", str(agent.pid), "-n", "ip"]
    for command in (["addr", "add", "10.77.0.2/24", "dev", "eth0"], ["link", "set", "eth0", "up"], ["link", "set", "lo", "up"]):
        subprocess.run(inside + command, check=True)
    yield "10.77.0.2"
    subprocess.run(["ip", "link", "del", name], check=False)


def serve(client, address, port, exec_id=None):
    run = client.start("python3", "-c", SERVER, address, str(port), exec_id=exec_id)
    return run


def wait(client, port, timeout_ms=10000, **fields):
    return client.request("PORT_WAIT", ("port", port), ("timeout_ms", timeout_ms), *fields.items())


def ask(address, port, data):
    with socket.create_connection((address, port), timeout=10) as s:
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := s.recv(65536):
            answer += piece
        return answer


def test_not_listening(client):
    assert wait(client, 8000, 0)["ready"] == 0
    assert wait(client, 8000, 100)["ready"] == 0
    for port in (0, 65536):
        assert wait(client, port)["error"] == "invalid_field"


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.77.0.2"])
def test_listening_for_all(client, net, address):
    waiting = client.open("PORT_WAIT", [("port", 8000), ("timeout_ms", 20000), ("forward", 1)])
    serve(client, address, 8000)
    result = client.frame_of(waiting).fields
    assert result == {"ready": 1}
    assert ask(net, 8000, b"x") == b"<x>"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_loopback_is_forwarded(client, net, address):
    serve(client, address, 8000)
    assert wait(client, 8000) == {"ready": 1}
    with pytest.raises(ConnectionRefusedError):
        ask(net, 8000, b"x")
    assert wait(client, 8000, forward=1) == {"ready": 1, "forward": 1}
    data = os.urandom(3_000_000)
    assert ask(net, 8000, data) == b"<" + data + b">"
    assert ask(net, 8000, b"") == b"<>"
    assert client.request("PORT_CLOSE", ("port", 8000)) == {}
    with pytest.raises(ConnectionRefusedError):
        ask(net, 8000, b"x")


def test_many_connections_through_the_forwarder(client, net):
    serve(client, "127.0.0.1", 8000)
    assert wait(client, 8000, forward=1)["forward"] == 1
    held = [socket.create_connection((net, 8000), timeout=10) for _ in range(300)]  # more than it takes at once
    for i, s in enumerate(held):
        s.sendall(b"%d" % i)
        s.shutdown(socket.SHUT_WR)
    for i, s in enumerate(held):
        answer = b""
        while piece := s.recv(100):
            answer += piece
        assert answer == b"<%d>" % i
        s.close()


def test_forwarder_outlives_the_stream_and_is_replaced(client, net, agent):
    run = serve(client, "127.0.0.1", 8000, "web")
    assert wait(client, 8000, forward=1)["forward"] == 1
    client.close()
    agent.clients.clear()
    client = agent.hello()
    assert ask(net, 8000, b"still") == b"<still>"
    run = client.start(exec_id="web", join=1)
    run.wait_started()
    run.signal(grace_ms=0)
    run.finish()
    # the old forwarder still listens there: that is not the program
    assert wait(client, 8000, 100, forward=1)["ready"] == 0
    with pytest.raises(ConnectionRefusedError):
        ask(net, 8000, b"x")
    serve(client, "127.0.0.1", 8000)
    assert wait(client, 8000, forward=1)["forward"] == 1
    assert ask(net, 8000, b"new") == b"<new>"


def test_program_that_has_gone(client, net):
    run = serve(client, "127.0.0.1", 8000)
    assert wait(client, 8000, forward=1)["forward"] == 1
    run.signal(grace_ms=0)
    run.finish()
    try:
        assert ask(net, 8000, b"x") == b""
    except OSError:  # or cut before we had said anything
        pass


def test_cancel_and_second_wait(client):
    first = client.open("PORT_WAIT", [("port", 8000), ("timeout_ms", 60000)])
    client.send(first, "CANCEL")
    assert client.frame_of(first).fields["error"] == "cancelled"
    second = client.open("PORT_WAIT", [("port", 8000), ("timeout_ms", 60000)])
    assert wait(client, 8000, 0)["ready"] == 0
    assert client.frame_of(second).fields["error"] == "cancelled"


def test_killed_forwarder_frees_the_port(client, net, agent):
    serve(client, "127.0.0.1", 8000).wait_started()
    before = set(agent.processes())
    assert wait(client, 8000, forward=1)["forward"] == 1
    (forwarder,) = set(agent.processes()) - before
    os.kill(forwarder, 9)

    def refused():
        try:
            ask(net, 8000, b"x")
        except ConnectionRefusedError:
            return True
        except OSError:
            return False

    wait_for(refused, "end of the forwarder")
    assert wait(client, 8000, forward=1)["forward"] == 1
    assert ask(net, 8000, b"y") == b"<y>"
