"""The server dies, or its store does, or the cluster's API is away: what was running is not lost."""

import hashlib
import threading

import pytest

from cluster import api_server_down, objects_of, pods_of
from server import wait_until

COUNT = "for i in $(seq 1 80); do echo line $i; sleep 0.1; done; exit 7"
COUNTED = "".join(f"line {i}\n" for i in range(1, 81))


def test_much_output_while_the_server_is_away(fresh):
    """More than the agent's buffers hold: the command waits, and nothing is lost or doubled."""
    server = fresh().start()
    client = server.client()
    client.create("loud")
    started = client.start("loud", ["sh", "-c", "for i in 1 2 3 4; do seq $i 4 1200000; sleep 0.5; done"], on_disconnect="kill")
    wait_until(lambda: client.get(f"/v1/sandboxes/loud/execs/{started['id']}")["stdout_bytes"] > 0, 30, "output")
    server.kill()
    server.start()
    client.wait_state("loud", "running")
    result = client.exec_wait("loud", started["id"])
    wanted = b"".join(b"%d\n" % n for i in range(1, 5) for n in range(i, 1200001, 4))
    assert (result["exit_code"], result["stdout_bytes"]) == (0, len(wanted))
    got = client.output("loud", started["id"]).content
    assert hashlib.sha256(got).hexdigest() == hashlib.sha256(wanted).hexdigest()
    client.delete("loud")


def test_a_crash_during_a_create_leaves_one_or_none(fresh):
    """B49: killed between the intent and the agent's hello, in several places."""
    server = fresh().start()
    for number, milliseconds in enumerate((1, 30, 120, 300, 600)):
        client = server.client()
        id = f"half-{number}"
        client.post("/v1/sandboxes", {"id": id, "image": "localhost/busybox:1", "wait": False}, 202)
        threading.Event().wait(milliseconds / 1000)
        server.kill()
        server.start()
    for number in range(5):
        id = f"half-{number}"
        state = client.settled(id)
        assert objects_of(id) == ([f"Pod/sandbox-{id}"] if state == "running" else []), state
        client.delete(id)
    assert pods_of(server) == []


@pytest.mark.own_cluster
def test_the_api_server_goes_and_comes_back(fresh):
    server = fresh().start()
    client = server.client()
    client.create("steady")
    started = client.start("steady", COUNT)
    with api_server_down():
        problem = wait_until(lambda: outage(client), 60, "the outage being told")
        assert problem["retryable"] and int(problem["headers"]["Retry-After"]) >= 1
        wait_until(lambda: server.answers("/readyz") == 503, 30, "the watch having noticed, too")
        assert server.answers("/healthz") == 200
        assert client.sandbox("steady")["id"] == "steady"  # what is known is told
    wait_until(lambda: server.answers("/readyz") == 200, 60, "the server being ready again")
    assert client.wait_state("steady", "running")["id"] == "steady"
    result = client.exec_wait("steady", started["id"])
    assert (result["exit_code"], result["stdout"]) == (7, COUNTED)
    assert client.exec("steady", ["echo", "again"])["stdout"] == "again\n"
    client.create("after-it")
    client.delete("after-it")
    client.delete("steady")
    assert pods_of(server) == []


def outage(client):
    response = client.request("POST", "/v1/sandboxes", None, json={"image": "localhost/busybox:1"})
    if response.status_code == 201:
        return None
    problem = response.json()
    assert (response.status_code, problem["code"]) == (503, "backend_unavailable"), problem
    return {**problem, "headers": response.headers}
