"""What an admin sees and does, and what owners see of each other."""

import re

KEYS = {"key-of-alice": ("alice", "user"), "key-of-bob": ("bob", "user"), "key-of-root": ("root", "admin")}


def test_every_field_of_a_sandbox(client):
    client.create("seen", labels={"team": "a"}, resources={"cpu": 1, "memory": "256Mi"})
    one = next(item for item in client.get("/v1/admin/sandboxes?label=team%3Da")["items"])
    assert (one["id"], one["owner"], one["state"], one["reason"], one["image"]) == ("seen", "local", "running", None, client.image)
    assert one["age"] > 0 and one["created"] and one["expires"] and one["since"] and one["backend"]["driver"]
    assert (one["resources"]["cpu"], one["resources"]["memory"]) == ("1", "256Mi")
    for limit in ("cpu", "memory", "pids"):
        assert isinstance(one["limits"][limit]["enforced"], bool), one["limits"]
    client.delete("seen")


def test_stats_count(client):
    def running():
        return client.get("/v1/admin/stats")["sandboxes"].get("running", 0)
    before = running()
    client.create("counted")
    assert running() == before + 1
    client.delete("counted")
    assert running() == before


def test_a_sweep_leaves_the_living_alone(client):
    client.create("alive")
    report = client.post("/v1/admin/reap", {"dry_run": True})
    assert report["dry_run"] is True and "alive" not in [item["id"] for item in report["items"]]
    assert client.post("/v1/admin/reap", {"dry_run": False})["dry_run"] is False
    assert client.exec("alive", ["true"])["exit_code"] == 0
    client.problem("POST", "/v1/admin/reap", 400, json={"what": 1})
    client.problem("POST", "/v1/admin/reap", 400, json={"dry_run": "yes"})
    client.delete("alive")


def test_owners_see_their_own_and_the_admin_all(fresh):
    server = fresh(keys=KEYS).start()
    alice, bob, root = (server.client(key) for key in KEYS)
    alice.create("hers")
    bob.create("his")
    assert [item["id"] for item in alice.list()] == ["hers"]
    bob.problem("GET", "/v1/sandboxes/hers", 404, "not_found")
    bob.exec_problem("hers", ["true"], 404)
    bob.problem("DELETE", "/v1/sandboxes/hers", 404)
    bob.problem("GET", "/v1/admin/sandboxes", 403, "forbidden")
    assert "alice" not in str(bob.create_problem(409, "already_exists", id="hers"))
    assert {item["id"]: item["owner"] for item in root.get("/v1/admin/sandboxes")["items"]} == {"hers": "alice", "his": "bob"}
    assert [item["id"] for item in root.get("/v1/admin/sandboxes?owner=bob")["items"]] == ["his"]
    assert root.exec("his", ["true"])["exit_code"] == 0
    server.client("wrong").problem("GET", "/v1/sandboxes", 401, "unauthenticated")
    alice.delete("hers")
    root.delete("his")


def metrics(client):
    """Name, labels included, → value; the text is what Prometheus reads."""
    response = client.request("GET", "/metrics", 200)
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4"
    lines = response.text.splitlines()
    described = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    for name in values:
        family = name.partition("{")[0]
        assert family in described or re.sub("_(bucket|sum|count)$", "", family) in described, name
    return {name: float(value) for name, value in values.items()}


def test_metrics_count_what_happens(client):
    before = metrics(client)
    client.create("counted")
    assert client.exec("counted", ["true"])["exit_code"] == 0
    client.delete("counted")
    client.create_problem((400, 422, 502, 503, 504), id="uncounted", image="no/such image")
    after = metrics(client)
    for name in ("podsandbox_create_seconds", "podsandbox_exec_seconds"):
        assert after[f"{name}_count"] >= before[f"{name}_count"] + 1
        assert after[f'{name}_bucket{{le="+Inf"}}'] == after[f"{name}_count"] and after[f"{name}_sum"] >= before[f"{name}_sum"]
    assert after["podsandbox_http_queue_seconds_count"] > before["podsandbox_http_queue_seconds_count"]
    assert after['podsandbox_http_replies_total{status="201"}'] > before.get('podsandbox_http_replies_total{status="201"}', 0)
    assert not any("counted" in name for name in after)
