"""SIGKILL of the server at random moments: the next start's sweep leaves nothing of what is over, and no record lies."""

import os
import random
import threading
from pathlib import Path

import pytest
import requests

from local_server import LocalServer
from server import SOAK, Problem, wait_until

ROUNDS = 500 if SOAK else 25
SEED = 20261130


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    server = LocalServer(None, tmp_path_factory.mktemp("crashes"), ["--reap-every", "0.2"]).start()
    yield server
    server.stop()
    server.end_boxes()


@pytest.fixture
def server(cloud):
    return cloud


def live(client, prefix, seen, stop):
    """Creates, runs and deletes until the server is gone. SEEN: what the server has said, by id."""
    count = 0
    while not stop.is_set():
        id = f"{prefix}-{count}"
        count += 1
        try:
            seen[id] = {"answer": None}
            seen[id]["uid"] = client.create(id, ttl=600)["uid"]
            result = client.exec(id, f"echo {id} > file; cat file")
            assert result["stdout"] == f"{id}\n"
            seen[id]["ran"] = True
            if count % 3:
                client.delete(id)
                seen[id]["deleted"] = True
        except (requests.RequestException, Problem):
            if not stop.is_set():
                wait_until(stop.is_set, what="the end of the server")


def crash(server, client, round, chance):
    """What was seen until the server was killed."""
    seen, stop = {}, threading.Event()
    threads = [threading.Thread(target=live, args=(client, f"r{round}-{n}", seen, stop)) for n in range(2)]
    for thread in threads:
        thread.start()
    killer = threading.Event()
    killer.wait(chance.uniform(0.001, 0.15))  # the random moment
    server.kill()
    stop.set()
    for thread in threads:
        thread.join()
    return seen


def alive(server):
    """The boxes on record whose agent is a process."""
    return {id for id in server.boxes() if os.path.exists(f"/proc/{server.agent_pid(id)}")}


def check(server, client, seen):
    """After the sweep: what lives is what the records say, and nothing else is left."""
    def settled():
        return not [one["id"] for one in client.list() if one["state"] in ("creating", "deleting")]
    wait_until(settled, what="every record being settled")
    records = {one["id"]: one for one in client.list()}
    running = {id for id, one in records.items() if one["state"] == "running"}
    wait_until(lambda: set(server.boxes()) == running, what=lambda: f"{server.boxes()} being {running}")
    assert alive(server) == running
    for id, said in seen.items():
        response = client.request("GET", f"/v1/sandboxes/{id}", (200, 404, 410))
        if said.get("deleted"):
            assert response.status_code == 410, (id, said, response.text)
        elif said.get("uid"):
            ended = response.status_code == 410 and response.json()["sandbox"]["reason"] == "deleted"
            assert id in running or ended, (id, said, response.text)
    for id in running:
        assert client.exec(id, ["true"])["exit_code"] == 0, id
        if seen.get(id, {}).get("ran"):
            assert client.exec(id, ["cat", "file"])["stdout"] == f"{id}\n"
    return running


def uids_of_processes():
    """Of every agent and bubblewrap of this machine: what follows --uid behind --listen-fd."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "--listen-fd" in words and "--uid" in words[words.index("--listen-fd"):]:
            found.add((words[words.index("--uid", words.index("--listen-fd")) + 1], int(path.name)))
    return found


def test_a_server_that_is_killed_at_any_moment(server, client):
    chance = random.Random(SEED)
    before = uids_of_processes()
    for round in range(ROUNDS):
        seen = crash(server, client, round, chance)
        server.start()
        running = check(server, client, seen)
        ours = {client.sandbox(id)["uid"] for id in running}
        for id in running:
            client.delete(id)
        wait_until(lambda: not server.boxes(), what="no box being left")
        assert server.cgroups() == []
        assert not server.processes(ours)
    server.stop()
    instances = {str(server.state)}
    left = [(uid, pid) for uid, pid in uids_of_processes() - before if belongs_to(pid, instances)]
    assert left == []
    assert str(server.dir) not in Path("/proc/self/mountinfo").read_text()
    assert sorted(os.listdir(server.state)) == ["boxes", "lock"] and os.listdir(server.state / "boxes") == []


def belongs_to(pid, directories):
    """By what its standard error is: the log in the directory of a box, there still or not."""
    try:
        return os.readlink(f"/proc/{pid}/fd/2").startswith(tuple(directories))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
