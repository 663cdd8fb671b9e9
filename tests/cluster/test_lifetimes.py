"""A sandbox past its ttl is gone, whoever was up; a renewed one lives; and no sweep touches what is not ours."""

from cluster import ID, INSTANCE, NAMESPACE, apply, foreign_pod, get, objects_of
from server import wait_until


def test_past_its_ttl_while_the_server_was_down(fresh):
    """Its agent ends it; the next start ends the rest: the record, and the objects of its preview."""
    server = fresh().start()
    client = server.client()
    client.create("down")
    client.create("longer", ttl=600)
    client.post("/v1/sandboxes/down/previews", {"command": ["python3", "-m", "http.server", "8000"], "port": 8000}, 201)
    client.request("PATCH", "/v1/sandboxes/down", 200, json={"ttl": 3})
    server.kill()

    def ended():
        status = get("pod", "-n", NAMESPACE, "sandbox-down")["status"]
        return status["phase"] in ("Succeeded", "Failed")
    wait_until(ended, 60, "the agent ending it by itself")
    assert len(objects_of("down")) == 3  # nobody has cleaned up yet
    server.start()
    assert client.wait_state("down", "gone", 30)["reason"] == "ttl"
    assert wait_until(lambda: objects_of("down") == [], 30, "nothing being left")
    assert client.sandbox("longer")["state"] == "running"


def test_sweeps_leave_strangers_alone(server, client, fresh):
    """B49: a foreign pod, one with half of our labels, and those of another instance with all of them."""
    managed = {"app.kubernetes.io/managed-by": "podsandbox"}
    strangers = {"my-job-1": {}, "sandbox-lookalike": {**managed, ID: "lookalike"},
                 "sandbox-other-tool": {ID: "other-tool", INSTANCE: server.instance}}
    apply(*[foreign_pod(name, labels=labels) for name, labels in strangers.items()])
    other = fresh().start()
    other.client().create("of-another", image="localhost/busybox:1")
    mine = client.create(image="localhost/busybox:1")["id"]
    before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in get("pods", "-n", NAMESPACE)}

    # An orphan of ours: all labels, no record, no agent that obeys.
    apply(foreign_pod("sandbox-orphan", labels={**managed, ID: "orphan", INSTANCE: server.instance}))
    would = client.post("/v1/admin/reap", {"dry_run": True}, 200)
    assert would["dry_run"] is True
    names = [item["name"] for item in would["items"]]
    assert not set(names) & set(before), would
    client.post("/v1/admin/reap", {"dry_run": False}, 200)
    wait_until(lambda: objects_of("orphan") == [], 60, "the orphan's end")
    server.restart()
    client.post("/v1/admin/reap", {}, 200)
    other.restart()
    other.client().post("/v1/admin/reap", {}, 200)
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in get("pods", "-n", NAMESPACE)
             if not pod["metadata"].get("deletionTimestamp")}
    assert before.items() <= after.items()
    client.delete(mine)
    other.client().delete("of-another")


def test_orphans_of_ours_go(server, client):
    """A box with our labels and instance whose record is gone, and an Ingress and Service without a box."""
    client.create("ghost", image="localhost/busybox:1")
    uid = client.sandbox("ghost")["uid"]
    pod = get("pod", "-n", NAMESPACE, "sandbox-ghost")
    client.delete("ghost")
    labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
    again = foreign_pod("sandbox-ghost", labels=labels)
    again["metadata"]["annotations"] = annotations
    service = {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]},
               "metadata": {"name": "preview-ghost", "namespace": NAMESPACE, "labels": {**labels, "podsandbox.dev/port": "80"}}}
    apply(again, service)
    assert uid in annotations.values()
    wait_until(lambda: (client.post("/v1/admin/reap", {}, 200), objects_of("ghost") == [])[1], 60, "the sweep taking both")
