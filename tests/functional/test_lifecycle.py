"""From create to gone: B17, B24, B47, B48 (repeated use of an id), B49, and the rules for input."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from fake_http import Closed
from server import at_once, open_request, reset, wait_until

LABEL = "podsandbox.dev/sandbox-id"


def test_a_sandbox_is_a_pod(client, api):
    record = client.create("first", ttl=600)
    assert record["backend"]["name"] == "sandbox-first" and record["backend"]["node"] == "node-1"
    assert record["backend"]["uid"] == api.get("pods", "sandbox-first")["metadata"]["uid"]
    client.delete("first")
    assert api.get("pods", "sandbox-first") is None


def test_the_same_id_again_and_again(client, api):
    uids = set()
    for _ in range(20):
        uids.add(client.create("again")["uid"])
        assert client.exec("again", ["true"])["exit_code"] == 0
        client.delete("again")
    assert len(uids) == 20
    assert api.sandbox_objects("again") == []


def test_what_does_not_exist_here_is_said(client):
    problem = client.create_problem(422, "not_supported", network="none")
    assert "network" in problem["detail"]
    client.create_problem(422, None, network="host")


def test_a_dry_run_asks_the_cluster(client, api):
    before = len(api.seen("create", "pods"))
    assert client.post("/v1/sandboxes?dry_run=true", {"id": "dry"})["dry_run"] is True
    assert len(api.seen("create", "pods", dry_run=True)) >= 1
    assert len(api.seen("create", "pods")) == before
    problem = client.problem("POST", "/v1/sandboxes?dry_run=true", 422, "runtime_class_missing",
                             json={"id": "dry", "runtime_class": "nowhere"})
    assert "nowhere" in problem["detail"]


def test_what_is_refused_is_not_asked_of_the_cluster(client, api):
    before = len(api.seen("create"))
    client.create_problem(400, "invalid_field", env={"A B": "1"})
    client.create_problem(400, "invalid_field", labels={"podsandbox.dev/owner": "me"})
    assert len(api.seen("create")) == before


def test_a_client_that_leaves_does_not_stop_a_create(server, client, api):
    hold = api.hold(verb="create", kind="pods")
    body = json.dumps({"id": "orphan", "image": "localhost/python:1"}).encode()
    sock = open_request(server.port, "POST", "/v1/sandboxes", body)
    hold.wait()
    reset(sock)
    hold.gate.open()
    client.wait_state("orphan", "running")
    client.delete("orphan")


# --- idempotency and double creates -------------------------------------------------
def test_b17_the_answer_to_a_create_is_lost(client, api):
    """The API server stores the pod and the connection breaks: exactly one pod, one answer."""
    client.create("warm")  # a connection that is kept alive
    cut = api.cut(after=True, verb="create", kind="pods", name="sandbox-once")
    record = client.create("once")
    assert cut.hits == 1
    assert record["backend"]["uid"] == api.get("pods", "sandbox-once")["metadata"]["uid"]
    assert [item["metadata"]["name"] for item in api.all("pods", f"{LABEL}=once")] == ["sandbox-once"]
    assert client.exec("once", ["true"])["exit_code"] == 0
    client.delete("once")
    client.delete("warm")


def test_b17_a_pod_of_that_name_that_is_not_ours(client, api):
    api.store.add("pods", {"metadata": {"name": "sandbox-foreign", "labels": {"app": "x"}}, "spec": {"containers": []}})
    problem = client.create_problem(409, "already_exists", id="foreign")
    assert "sandbox-foreign" in problem["detail"]
    assert api.get("pods", "sandbox-foreign")["metadata"]["labels"] == {"app": "x"}
    api.remove("pods", "sandbox-foreign")


def test_b17_same_key_at_once_is_one_pod(client, api):
    before = len(api.seen("create", "pods"))
    records = at_once(8, lambda: client.create(headers={"Idempotency-Key": "key-1"}, labels={"x": "1"}))
    assert len(api.seen("create", "pods")) == before + 1
    client.delete(records[0]["id"])


# --- what the pod looks like -----------------------------------------------------------
def test_b47_b24_the_pod_is_hardened_and_holds_nothing_of_the_caller(client, api):
    env = {"A": "x", "B": "$(A)", "C": "$$D", "E": "p$$", "F": "$(NOPE)", "G": "a$b"}
    client.create("golden", env=env, secrets=["hunter2-hunter2"], resources={"cpu": "500m", "memory": "1Gi", "storage": "1Gi"},
                  writable_mounts={"data": "/data"})
    pod = api.get("pods", "sandbox-golden")
    spec = pod["spec"]
    container = spec["containers"][0]
    assert spec["enableServiceLinks"] is False and spec["automountServiceAccountToken"] is False
    assert spec["restartPolicy"] == "Never" and spec["terminationGracePeriodSeconds"] <= 2
    assert spec["activeDeadlineSeconds"] >= 86400
    security = spec["securityContext"]
    assert security == {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000,
                        "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                            "capabilities": {"drop": ["ALL"]}}
    assert container["name"] == "sandbox"
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    assert container["resources"]["requests"]["cpu"] == "250m"
    for volume in spec["volumes"]:
        assert "image" in volume or volume["emptyDir"]["sizeLimit"], volume
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/workspace", "/tmp", "/data"} <= mounts
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & set(spec)
    labels = pod["metadata"]["labels"]
    assert labels[LABEL] == "golden" and labels["app.kubernetes.io/managed-by"] == "podsandbox"
    text = json.dumps(pod)
    assert "hunter2" not in text and "$(A)" not in text and "NOPE" not in text
    # and still the variables are there, byte for byte
    out = client.exec("golden", ["env", "-0"])["stdout"]
    have = dict(item.split("=", 1) for item in out.split("\0") if item)
    assert {name: have[name] for name in env} == env
    assert client.exec("golden", "touch /data/x && cat /proc/self/status")["exit_code"] == 0
    client.delete("golden")


# --- the server ends or dies ---------------------------------------------------------------
def test_b49_killed_while_the_pod_is_being_made(server, client, api):
    """Intent stored, the cluster not asked yet; asked, but not answered; answered: never two pods, never a lie."""
    for number, after in enumerate((False, True)):
        name = f"crash-{number}"

        def crash(api_server, connection, call, after=after):
            if after:
                api_server.perform(call)
            server.kill()
            raise Closed("the client is dead")
        api.fault(crash, verb="create", kind="pods", name=f"sandbox-{name}")
        with pytest.raises(requests.RequestException):
            client.create(name)
        wait_until(lambda: server.process.poll() is not None, what="the server's death")
        server.start()

        def settled():
            response = client.request("GET", f"/v1/sandboxes/{name}", (200, 404, 410))
            return response if response.status_code != 200 or response.json()["state"] in ("running", "failed") else None
        response = wait_until(settled, 60)
        pods = api.all("pods", f"{LABEL}={name}")
        if response.status_code == 200 and response.json()["state"] == "running":
            assert len(pods) == 1 and response.json()["backend"]["uid"] == pods[0]["metadata"]["uid"]
            assert client.exec(name, ["true"])["exit_code"] == 0
            client.delete(name)
        else:
            wait_until(lambda: api.all("pods", f"{LABEL}={name}") == [], what="no pod without a record")


def test_b49_strangers_are_left_alone(server, client, api):
    strangers = {
        "my-job-1": {"app": "job"},
        "sandbox-theirs": {LABEL: "theirs", "app.kubernetes.io/managed-by": "podsandbox"},  # the Python package's
        "sandbox-other": {LABEL: "other", "app.kubernetes.io/managed-by": "podsandbox", "podsandbox.dev/instance": "other"},
    }
    for name, labels in strangers.items():
        api.store.add("pods", {"metadata": {"name": name, "labels": labels}, "spec": {"containers": []}})
    client.post("/v1/admin/reap", {"dry_run": False})
    server.restart()
    client.post("/v1/admin/reap", {"dry_run": False})
    for name in strangers:
        assert api.get("pods", name), name
    assert not [call for call in api.seen("delete", "pods") if call.name in strangers]
    client.problem("GET", "/v1/sandboxes/other", 404)
    foreign = client.get("/v1/admin/sandboxes?foreign=true")["items"]
    assert {"theirs", "other"} <= {item["id"] for item in foreign}
    for name in strangers:
        api.remove("pods", name)


def test_b49_rows_without_a_pod_are_lost(server, client, api):
    client.create("vanished")
    server.stop()
    api.remove("pods", "sandbox-vanished")
    server.start()
    assert client.wait_state("vanished", "gone")["reason"] in ("lost", "removed_externally")


def test_removed_by_somebody_else(client, api):
    client.create("taken-away")
    api.remove("pods", "sandbox-taken-away")
    record = client.wait_state("taken-away", "gone")
    assert record["reason"] == "removed_externally"


def test_a_gone_id_is_free_at_once(client, api):
    """Whoever reads that it is gone can make another of that id."""
    for _ in range(20):
        client.create("free")
        api.remove("pods", "sandbox-free")
        assert client.wait_state("free", "gone")["reason"] == "removed_externally"
    client.create("free")
    client.delete("free")


def test_stop_answers_what_it_has_accepted(fresh):
    server = fresh().start()
    client = server.client()
    client.create("busy")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.exec, "busy", "sleep 1; echo done")
        wait_until(lambda: any("sleep" in " ".join(line) for line in server.api.node.container("busy").processes()))
        server.stop()
        assert answer.result()["stdout"] == "done\n"
