"""Deadlines and the reaper where the cluster is asked, and what a sweep may and may not touch."""

import json
import uuid
from concurrent.futures import ThreadPoolExecutor

from server import at_once, wait_until

OPTIONS = ("--reap-every", "0.5")


def test_while_the_server_is_down(server, client, api):
    """The agent ends it; the next start ends the rest."""
    client.create("down", ttl=1.5)
    container = api.node.container("down")
    server.kill()
    container.process.wait(30)
    server.start()
    assert client.wait_state("down", "gone")["reason"] == "ttl"
    api.wait_gone("pods", "sandbox-down")


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
    assert set(at_once(8, lambda: client.request("DELETE", "/v1/sandboxes/together").status_code)) == {204}
    assert len(api.seen("delete", "pods")) - before <= 2
