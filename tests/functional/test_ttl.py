"""Deadlines and the reaper: B18, and what a sweep may and may not touch."""

import json
import random
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from server import SOAK, wait_until

OPTIONS = ("--reap-every", "0.5")


def test_past_its_ttl(client, api):
    client.create("brief", ttl=1)
    record = client.wait_state("brief", "gone")
    assert record["reason"] == "ttl"
    api.wait_gone("pods", "sandbox-brief")


def test_a_running_command_does_not_hold_it(client, api):
    client.create("held", ttl=1.5)
    result = client.exec("held", ["sleep", "600"])
    assert result["exit_code"] is None and result["error"]["code"] == "sandbox_gone"
    assert client.wait_state("held", "gone")["reason"] == "ttl"


def test_while_the_server_is_down(server, client, api):
    """The agent ends it; the next start ends the rest."""
    client.create("down", ttl=1.5)
    container = api.node.container("down")
    server.kill()
    container.process.wait(30)
    server.start()
    assert client.wait_state("down", "gone")["reason"] == "ttl"
    api.wait_gone("pods", "sandbox-down")


def test_renewed(client):
    client.create("renewed", ttl=1.5)
    client.request("PATCH", "/v1/sandboxes/renewed", 200, json={"ttl": 3600})
    time.sleep(2.5)  # what must not happen has no event
    assert client.exec("renewed", ["true"])["exit_code"] == 0
    client.delete("renewed")


def test_renewal_outlives_a_restart(server, client):
    client.create("kept", ttl=2)
    record = client.request("PATCH", "/v1/sandboxes/kept", 200, json={"ttl": 3600}).json()
    server.kill()
    server.start()
    time.sleep(2.5)
    assert client.sandbox("kept")["expires"][:16] == record["expires"][:16]
    client.delete("kept")


def test_a_renewal_without_an_agent_is_not_promised(client, api):
    """200 only after the agent has acknowledged."""
    client.create("deaf", ttl=3600)
    hold = api.exec_fault("deaf", refuse=(503, b"no", "text/plain"), times=None)
    api.stream("deaf").reset()
    wait_until(lambda: hold.used)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.request, "PATCH", "/v1/sandboxes/deaf", json={"ttl": 7200})
        wait_until(lambda: hold.used > 2)
        assert not answer.done()
        api.exec_faults.clear()
        assert answer.result().status_code == 200
    client.delete("deaf")


@pytest.mark.parametrize("rounds", [1000 if SOAK else 24])
def test_b18_renewed_at_the_last_moment(client, rounds):
    """Each lives, and renew said so, or is gone, and renew said so."""
    def one(index):
        name = f"edge-{index}"
        expires = time.monotonic() + 2
        if client.request("POST", "/v1/sandboxes", (201, 410), json={"id": name, "ttl": 2}).status_code == 410:
            return "gone"  # on a slow machine, before it was ready
        time.sleep(max(0, expires - time.monotonic() - 0.05 + random.uniform(-0.04, 0.06)))
        response = client.request("PATCH", f"/v1/sandboxes/{name}", json={"ttl": 600})
        if response.status_code == 200:
            time.sleep(1.5)
            result = client.request("POST", f"/v1/sandboxes/{name}/execs", json={"cmd": ["true"]})
            assert result.status_code == 200 and result.json()["exit_code"] == 0, (name, result.text)
            client.delete(name)
            return "renewed"
        assert response.status_code in (404, 409, 410, 502), response.text
        assert client.wait_state(name, "gone")["reason"] == "ttl"
        return "gone"
    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(one, range(rounds)))
    assert len(ends) == rounds


def test_maximum_lifetime_caps_the_ttl(fresh):
    server = fresh("--max-lifetime", "100", "--ttl", "50").start()
    client = server.client()
    response = client.request("POST", "/v1/sandboxes", json={"id": "long", "ttl": 1000})
    assert response.status_code in (400, 422) and "ttl" in response.json()["detail"], response.text
    client.create("ok", ttl=100)
    response = client.request("PATCH", "/v1/sandboxes/ok", json={"ttl": 1000})
    assert response.status_code in (400, 422)


# --- the sweep ---------------------------------------------------------------------------------------
def leave_behind(api, pattern, name, instance=None):
    """A pod as this server makes them, or one of another instance, that has ended and that no record knows."""
    metadata = api.get("pods", f"sandbox-{pattern}")["metadata"]
    labels = {**metadata["labels"], "podsandbox.dev/sandbox-id": name}
    if instance:
        labels["podsandbox.dev/instance"] = instance
    api.store.add("pods", {"metadata": {"name": f"sandbox-{name}", "labels": labels,
                                        "annotations": {**metadata["annotations"], "podsandbox.dev/uid": str(uuid.uuid4())}},
                           "spec": {"containers": [{"name": "sandbox"}]}, "status": {"phase": "Failed"}})


def test_dry_run_and_real(fresh):
    server = fresh("--reap-every", "3600").start()
    client, api = server.client(), server.api
    client.create("alive")
    api.stall_watches()  # seen by the watch, it would go at once
    leave_behind(api, "alive", "orphan")
    leave_behind(api, "alive", "other", "another")
    report = client.post("/v1/admin/reap", {"dry_run": True})
    assert report["dry_run"] is True
    assert "sandbox-orphan" in json.dumps(report) and "sandbox-other" not in json.dumps(report), report
    assert api.get("pods", "sandbox-orphan")
    report = client.post("/v1/admin/reap", {"dry_run": False})
    assert report["dry_run"] is False
    wait_until(lambda: api.get("pods", "sandbox-orphan") is None)
    assert api.get("pods", "sandbox-other")
    assert client.sandbox("alive")["state"] == "running"
    client.problem("POST", "/v1/admin/reap", 400, json={"what": 1})
    client.problem("POST", "/v1/admin/reap", 400, json={"dry_run": "yes"})


def test_the_sweep_runs_by_itself(server, client, api):
    """B49: proven in the real binary."""
    client.create("sample")
    leave_behind(api, "sample", "leftover")
    api.wait_gone("pods", "sandbox-leftover")
    client.delete("sample")


def test_tombstones_are_forgotten(fresh):
    server = fresh("--tombstones", "1", "--reap-every", "0.5").start()
    client = server.client()
    client.create("old")
    client.exec("old", ["echo", "x"])
    client.delete("old")
    wait_until(lambda: client.request("GET", "/v1/sandboxes/old").status_code == 404, what="the tombstone being forgotten")
    assert client.get("/v1/sandboxes?state=gone")["items"] == []


def test_deletes_at_once_are_one(client, api):
    client.create("together")
    before = len(api.seen("delete", "pods"))
    barrier = threading.Barrier(8)

    def delete(_):
        barrier.wait()
        return client.request("DELETE", "/v1/sandboxes/together").status_code
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(delete, range(8))) == {204}
    assert len(api.seen("delete", "pods")) - before <= 2
