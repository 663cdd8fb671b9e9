"""B09: clients that go away, by RST, by FIN or unplugged, and what they had started."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from events import follow, joined
from server import POOL_THREADS, SOAK, WRAPPER, open_request, reset, unplug, wait_until

GRACE = 0.2  # disconnect_grace of these commands


@pytest.fixture(scope="module")
def box(cloud):
    client = cloud.client()
    client.create("leave", ttl=3600)
    return "leave"


def start(server, box, cmd, accept="application/json", **body):
    """A client that waits for a command's result, or follows its output: its socket."""
    body = json.dumps({"cmd": cmd, "disconnect_grace": GRACE, **body}).encode()
    return open_request(server.port, "POST", f"/v1/sandboxes/{box}/execs", body, {"Accept": accept})


buffered_or_streamed = pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"], ids=["buffered", "streamed"])


def count(api, box, word):
    return len([line for line in api.node.container(box).processes() if word in " ".join(line)])


LOUD = ["sh", "-c", "while :; do echo t; sleep 0.2; done # LOUD"]
SILENT = ["sleep", "604"]


@pytest.mark.parametrize("cmd, word", [(LOUD, "LOUD"), (SILENT, "sleep 604")], ids=["loud", "silent"])
@pytest.mark.parametrize("how", [reset, lambda sock: sock.close()], ids=["RST", "FIN"])
@buffered_or_streamed
def test_gone_means_dead(server, api, box, cmd, word, how, accept):
    sock = start(server, box, cmd, accept)
    wait_until(lambda: count(api, box, word))
    how(sock)
    wait_until(lambda: not count(api, box, word), what="the command's death")


@buffered_or_streamed
def test_unplugged_means_dead(server, client, api, box, accept):
    """No FIN, no RST, no ACK: found by probes of the server, or by heartbeats that nobody acknowledges."""
    sock = start(server, box, SILENT, accept)
    wait_until(lambda: count(api, box, "sleep 604"))
    unplug(sock)
    wait_until(lambda: not count(api, box, "sleep 604"), 60, "the command's death")
    sock.close()


def test_a_half_close_is_not_a_departure(server, api, box):
    """`nc -N` and the like: the request is whole, and the answer is still wanted."""
    sock = start(server, box, ["sh", "-c", "sleep 1; echo done"])
    sock.shutdown(socket.SHUT_WR)
    answer = b""
    while piece := sock.recv(65536):
        answer += piece
    sock.close()
    assert b"done" in answer or not answer  # either policy; but never half an answer
    assert not answer or b'"exit_code"' in answer


def test_keep_means_alive(server, client, api, box):
    sock = start(server, box, ["sh", "-c", "while [ ! -e finish ]; do sleep 0.05; done; echo kept # KEEP"], on_disconnect="keep")
    wait_until(lambda: count(api, box, "KEEP"))
    reset(sock)
    time.sleep(GRACE + 1)  # what must not happen has no event
    assert count(api, box, "KEEP")
    number = client.get(f"/v1/sandboxes/{box}/execs")["items"][0]["id"]
    client.put(box, "finish", b"")
    assert client.exec_wait(box, number)["stdout"] == "kept\n"
    client.request("DELETE", client.file_url(box, "finish"), 204)


def test_a_stream_is_joined_again_within_the_grace(server, client, api, box):
    sock = start(server, box, ["sh", "-c", "echo one; while [ ! -e finish3 ]; do sleep 0.05; done; echo two # JOIN3"],
                 "application/x-ndjson", disconnect_grace=3)
    got = b""
    while b'"one' not in got:
        got += sock.recv(4096)
    reset(sock)
    had = [json.loads(line) for line in got.split(b"\n") if line.startswith(b"{")]
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(lambda: list(follow(client, box, had[0]["exec"], had[-1]["id"])))
        time.sleep(4)  # longer than the grace: what must not happen has no event
        client.put(box, "finish3", b"")
        assert joined(had + rest.result()) == b"one\ntwo\n" and rest.result()[-1]["result"]["exit_code"] == 0


def test_rejoined_within_the_grace(server, client, api, box):
    sock = start(server, box, ["sh", "-c", "while [ ! -e finish2 ]; do sleep 0.05; done; echo joined # JOIN"], disconnect_grace=3)
    wait_until(lambda: count(api, box, "JOIN"))
    number = client.get(f"/v1/sandboxes/{box}/execs")["items"][0]["id"]
    reset(sock)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.get, f"/v1/sandboxes/{box}/execs/{number}?wait=30")
        time.sleep(4)
        client.put(box, "finish2", b"")
        assert answer.result()["stdout"] == "joined\n"


def test_the_whole_tree_dies(server, api, box):
    sock = start(server, box, ["bash", "-c", "(setsid bash -c 'exec -a TREE sleep 300') & (exec -a TREE sleep 300) & exec -a TREE sleep 300"])
    wait_until(lambda: count(api, box, "TREE") >= 3)
    reset(sock)
    wait_until(lambda: not count(api, box, "TREE"), what="the tree's death")


@pytest.mark.parametrize("rounds", [30 if WRAPPER else 500])
@pytest.mark.parametrize("what", ["exec", "stream", "read", "write", "wait"])
def test_b09_again_and_again_leaves_nothing(server, client, api, box, what, rounds):
    client.put(box, "big", b"b" * (4 << 20))

    def once(index):
        if what in ("exec", "stream"):
            accept = "application/json" if what == "exec" else "text/event-stream"
            sock = start(server, box, ["sh", "-c", "echo x; exec sleep 605"], accept, disconnect_grace=0)
            if index % 2:
                wait_until(lambda: count(api, box, "sleep 605"))
        elif what == "read":
            sock = open_request(server.port, "GET", client.file_url(box, "big"))
            sock.recv(1000)
        elif what == "write":
            sock = open_request(server.port, "PUT", client.file_url(box, "half"), b"", {"Content-Length": 4 << 20})
            sock.sendall(b"h" * 300000)
        else:
            sock = open_request(server.port, "GET", f"/v1/sandboxes/{box}/execs/1?wait=60")
        reset(sock)
    for index in range(5):
        once(index)

    def settled():
        return not count(api, box, "sleep 605") and client.sandbox(box)["running_execs"] == 0
    wait_until(settled)
    before = server.usage()
    for index in range(rounds):
        once(index)
    wait_until(settled, 60)
    wait_until(lambda: server.usage()["fds"] <= before["fds"] + 4,
               what=lambda: f"descriptors back to {before['fds']}, now {server.descriptors()},")
    after = server.usage()
    assert after["threads"] <= before["threads"] + POOL_THREADS
    if not WRAPPER:
        assert after["rss"] <= before["rss"] + 50 * 1024
    assert client.request("GET", client.file_url(box, "half")).status_code == 404
    assert client.exec(box, ["sh", "-c", "ls -A | grep -c podsandbox || true"])["stdout"] == "0\n"


@pytest.mark.parametrize("rounds", [500 if SOAK else 100])
def test_b09_unplugged_again_and_again_leaves_nothing(server, client, api, box, rounds):
    """Up to 100 at once, as each is found out by probes that take their time."""
    before = {}
    for done in range(0, rounds + 10, 100):
        socks = [start(server, box, ["sleep", "607"], disconnect_grace=0) for _ in range(100 if done else 10)]
        wait_until(lambda: count(api, box, "sleep 607") == len(socks), what="the commands running")
        for sock in socks:
            unplug(sock)
        wait_until(lambda: not count(api, box, "sleep 607") and client.sandbox(box)["running_execs"] == 0, 60, "the commands' death")
        for sock in socks:
            sock.close()
        before = before or {**server.usage(), "inside": len(api.node.container(box).processes())}
    wait_until(lambda: server.usage()["fds"] <= before["fds"] + 4,
               what=lambda: f"descriptors back to {before['fds']}, now {server.descriptors()},")
    assert server.usage()["threads"] <= before["threads"] + POOL_THREADS
    assert len(api.node.container(box).processes()) == before["inside"]


def test_many_waiting_clients_leave_at_once(server, client, api, box):
    socks = [start(server, box, ["sleep", "606"]) for _ in range(60)]
    wait_until(lambda: count(api, box, "sleep 606") == 60)
    for index, sock in enumerate(socks):
        reset(sock) if index % 2 else sock.close()
    wait_until(lambda: not count(api, box, "sleep 606"), 60)
    assert client.exec(box, ["true"])["exit_code"] == 0


def test_a_reader_that_stops_reading_does_not_hurt_others(server, client, api, box):
    client.put(box, "large", b"l" * (32 << 20))
    sock = open_request(server.port, "GET", client.file_url(box, "large"))
    sock.recv(100)
    for _ in range(5):
        assert client.exec(box, ["true"])["exit_code"] == 0
        assert len(client.read(box, "large")) == 32 << 20
    got = 100
    while got < (32 << 20):
        piece = sock.recv(1 << 20)
        assert piece
        got += len(piece)
    sock.close()
