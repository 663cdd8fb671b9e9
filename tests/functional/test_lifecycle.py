"""From create to gone: B17, B24, B47, B48 (repeated use of an id), B49, and the rules for input."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from fake_http import Closed
from server import reset, open_request, wait_until

LABEL = "podsandbox.dev/sandbox-id"


def test_create_show_list_delete(client, api):
    response = client.request("POST", "/v1/sandboxes", 201, json={"id": "first", "labels": {"team": "a"}, "ttl": 600})
    record = response.json()
    assert response.headers["Location"] == "/v1/sandboxes/first"
    assert record["id"] == "first" and record["state"] == "running" and record["owner"] == "local"
    assert record["image"] == "localhost/python:1" and record["labels"] == {"team": "a"}
    assert record["backend"]["name"] == "sandbox-first" and record["backend"]["node"] == "node-1"
    assert record["backend"]["uid"] == api.get("pods", "sandbox-first")["metadata"]["uid"]
    for name in ("created", "ready", "expires", "since"):
        assert record[name].endswith("Z"), name

    shown = client.sandbox("first")
    assert shown["uid"] == record["uid"]
    assert client.request("HEAD", "/v1/sandboxes/first", 200).content == b""
    assert [item["id"] for item in client.list()] == ["first"]

    assert client.delete("first").content == b""
    assert api.get("pods", "sandbox-first") is None
    assert client.delete("first").content == b""  # not an error
    problem = client.problem("GET", "/v1/sandboxes/first", 410, "gone")
    assert problem["reason"] == "deleted"
    assert problem["sandbox"]["uid"] == record["uid"] and problem["sandbox"]["state"] == "gone"
    assert client.request("HEAD", "/v1/sandboxes/first").status_code == 410
    client.exec_problem("first", ["true"], 410, "gone")
    assert client.list() == []
    assert "first" in [item["id"] for item in client.list("&state=gone")]


def test_create_without_waiting(client, api):
    record = client.create("later", expect=202, wait=False)
    assert record["state"] == "creating"
    assert client.wait_state("later", "running")["uid"] == record["uid"]
    client.delete("later")


def test_everything_is_optional(client):
    record = client.post("/v1/sandboxes", None, 201)
    assert record["id"].startswith("run-") and len(record["id"]) == 16
    client.delete(record["id"])


def test_the_same_id_again_and_again(client, api):
    uids = set()
    for _ in range(20):
        uids.add(client.create("again")["uid"])
        assert client.exec("again", ["true"])["exit_code"] == 0
        client.delete("again")
    assert len(uids) == 20
    assert api.sandbox_objects("again") == []


def test_an_id_in_use_is_taken(client):
    first = client.create("taken")
    client.create_problem(409, "already_exists", id="taken")
    assert client.sandbox("taken")["uid"] == first["uid"]
    client.delete("taken")


def test_unknown_and_wrong_method(client):
    client.problem("GET", "/v1/sandboxes/nobody", 404, "not_found")
    client.problem("DELETE", "/v1/sandboxes/nobody", 404, "not_found")
    client.problem("POST", "/v1/sandboxes/nobody/execs", 404, json={"cmd": ["true"]})
    client.problem("GET", "/v1/nothing", 404)
    problem = client.problem("PUT", "/v1/sandboxes", 405, "method_not_allowed")
    assert set(problem["headers"]["Allow"].replace(" ", "").split(",")) == {"GET", "HEAD", "POST"}


@pytest.mark.parametrize("field, body", [
    ("id", {"id": "Upper"}), ("id", {"id": "a" * 41}), ("id", {"id": ""}), ("id", {"id": "-a"}), ("id", {"id": "a-"}),
    ("id", {"id": "8000-a"}), ("id", {"id": 'a"; } location /x { #'}), ("id", {"id": "${x}"}), ("id", {"id": "*"}),
    ("id", {"id": "(a|b)"}), ("id", {"id": "a\nb"}), ("id", {"id": "x" * 10240}), ("id", {"id": "a.b"}), ("id", {"id": "a/../b"}), ("id", {"id": 7}), ("id", {"id": "a\u0000b"}),
    ("image", {"image": ""}), ("image", {"image": "x" * 501}), ("image", {"image": ["a"]}),
    ("env", {"env": {"A B": "1"}}), ("env", {"env": {"": "1"}}), ("env", {"env": {"A=B": "1"}}), ("env", {"env": {"1BAD": "1"}}),
    ("env", {"env": {"A\nB": "1"}}), ("env", {"env": {"A": 1}}), ("env", {"env": {"A; touch /tmp/pwn #": "1"}}),
    ("env", {"env": {"A": "a\u0000b"}}), ("env", {"env": []}),
    ("labels", {"labels": {"podsandbox.dev/owner": "me"}}), ("labels", {"labels": {"app.kubernetes.io/name": "x"}}),
    ("labels", {"labels": {"a": "b c"}}), ("labels", {"labels": {"a": '"; } location /x { #'}}), ("labels", {"labels": {"a": "${x}"}}),
    ("labels", {"labels": {"nginx.ingress.kubernetes.io/x; y": "z"}}), ("labels", {"labels": {"a": "x" * 64}}), ("labels", {"labels": {"a b": "c"}}),
    ("secrets", {"secrets": "abc"}), ("secrets", {"secrets": ["x" * 65537]}), ("secrets", {"secrets": [1]}),
    ("workdir", {"workdir": "relative"}), ("workdir", {"workdir": "/a/../b"}), ("workdir", {"workdir": "/opt/podsandbox/x"}),
    ("workdir", {"workdir": "/proc"}), ("workdir", {"workdir": "/a b'; touch /tmp/pwn; '\n"}),
    ("cpu", {"resources": {"cpu": "lots"}}), ("memory", {"resources": {"memory": "-1"}}), ("cpu", {"resources": {"cpu": 0}}),
    ("gpu", {"resources": {"gpu": 1}}), ("resources", {"resources": 3}),
    ("ttl", {"ttl": -1}), ("ttl", {"ttl": 0}), ("ttl", {"ttl": "10"}), ("ttl", {"ttl": 1e300}), ("ttl", {"ttl": 2**53}),
    ("ready_timeout", {"ready_timeout": -5}), ("ready_timeout", {"ready_timeout": 10**9}),
    ("writable_mounts", {"writable_mounts": ["/data"]}), ("writable_mounts", {"writable_mounts": {"data": "data"}}),
    ("writable_mounts", {"writable_mounts": {"tmp": "/x"}}), ("writable_mounts", {"writable_mounts": {"d": "/etc"}}),
    ("wait", {"wait": "yes"}), ("colour", {"colour": "red"}), ("run_as_user", {"run_as_user": 0}),
])
def test_a_wrong_field_is_named(client, api, field, body):
    before = len(api.seen("create"))
    response = client.request("POST", "/v1/sandboxes", json=body)
    problem = response.json()
    assert response.status_code == 400, problem
    assert problem["code"] in ("invalid_field", "invalid_json") and (field in problem["detail"] or "\\u0000" in json.dumps(body))
    assert problem["category"] == "request_error" and problem["retryable"] is False
    assert len(api.seen("create")) == before


def test_policy_is_not_a_syntax_error(client):
    client.create_problem(422, "policy_denied", run_as_user=2000)
    client.create_problem(422, "policy_denied", read_only_root=False)


def test_what_does_not_exist_here_is_said(client):
    problem = client.create_problem(422, "not_supported", network="none")
    assert "network" in problem["detail"]
    client.create_problem(422, None, network="host")


def test_media_type_and_size(client):
    client.problem("POST", "/v1/sandboxes", 415, "unsupported_media_type", data="id=a",
                   headers={"Content-Type": "application/x-www-form-urlencoded"})
    client.problem("POST", "/v1/sandboxes", 400, "invalid_json", data="[]", headers={"Content-Type": "application/json"})
    big = json.dumps({"env": {"A": "x" * (13 << 20)}})
    client.problem("POST", "/v1/sandboxes", 413, "too_large", data=big, headers={"Content-Type": "application/json"})


def test_dry_run_makes_nothing(client, api):
    before = len(api.seen("create", "pods"))
    reply = client.post("/v1/sandboxes?dry_run=true", {"id": "dry"})
    assert reply["dry_run"] is True and reply["id"] == "dry"
    assert len(api.seen("create", "pods", dry_run=True)) >= 1
    assert len(api.seen("create", "pods")) == before
    client.problem("GET", "/v1/sandboxes/dry", 404)
    problem = client.problem("POST", "/v1/sandboxes?dry_run=true", 422, "runtime_class_missing",
                             json={"id": "dry", "runtime_class": "nowhere"})
    assert "nowhere" in problem["detail"]
    client.problem("POST", "/v1/sandboxes?dry_run=maybe", 400, json={})


def test_a_client_that_leaves_does_not_stop_a_create(server, client, api):
    hold = api.hold(verb="create", kind="pods")
    body = json.dumps({"id": "orphan", "image": "localhost/python:1"}).encode()
    sock = open_request(server.port, "POST", "/v1/sandboxes", body)
    hold.wait()
    reset(sock)
    hold.gate.open()
    client.wait_state("orphan", "running")
    client.delete("orphan")


def test_listing_filters_and_pages(client):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: client.create(f"many-{i}", labels={"n": str(i % 3), "kind": "many"}), range(9)))
    assert len(client.list("&label=kind=many")) == 9
    assert {item["id"] for item in client.list("&label=kind=many,n=1")} == {"many-1", "many-4", "many-7"}
    page = client.get("/v1/sandboxes?label=kind=many&limit=4")
    assert len(page["items"]) == 4 and page["next"]
    rest = client.get(f"/v1/sandboxes?label=kind=many&limit=10&cursor={page['next']}")
    assert len(rest["items"]) == 5 and rest["next"] is None
    assert not {item["id"] for item in page["items"]} & {item["id"] for item in rest["items"]}
    assert len(client.list("&label=kind=many&state=running")) == 9
    assert client.list("&label=kind=many&state=failed") == []
    for bad in ("state=odd", "limit=0", "limit=501", "cursor=%21%21", "label=x", "limit=1&limit=2", "what=1"):
        client.problem("GET", f"/v1/sandboxes?{bad}", 400)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: client.delete(f"many-{i}"), range(9)))


def test_patch_ttl_and_labels(client):
    record = client.create("patched", ttl=100, labels={"a": "1"})
    changed = client.request("PATCH", "/v1/sandboxes/patched", 200, json={"ttl": 5000}).json()
    assert changed["expires"] > record["expires"] and changed["labels"] == {"a": "1"}
    changed = client.request("PATCH", "/v1/sandboxes/patched", 200, json={"labels": {"b": "2"}}).json()
    assert changed["labels"] == {"b": "2"}
    client.problem("PATCH", "/v1/sandboxes/patched", 400, "invalid_field", json={"image": "x"})
    client.problem("PATCH", "/v1/sandboxes/patched", 400, "invalid_field", json={"ttl": -1})
    client.problem("PATCH", "/v1/sandboxes/patched", 400, "invalid_field", json={"labels": {"podsandbox.dev/x": "1"}})
    client.delete("patched")


def test_events_tell_what_happened(client):
    client.create("eventful")
    client.delete("eventful")
    page = client.get("/v1/sandboxes/eventful/events")
    kinds = [item["type"] for item in page["items"]]
    assert len(kinds) >= 3 and len(set(item["id"] for item in page["items"])) == len(kinds), page
    after = client.get(f"/v1/sandboxes/eventful/events?after={page['items'][0]['id']}")
    assert [item["id"] for item in after["items"]] == [item["id"] for item in page["items"][1:]]


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


def test_b17_same_key_at_once(client, api):
    before = len(api.seen("create", "pods"))
    barrier = threading.Barrier(8)

    def create(_):
        barrier.wait()
        return client.create(headers={"Idempotency-Key": "key-1"}, labels={"x": "1"})
    with ThreadPoolExecutor(8) as pool:
        records = list(pool.map(create, range(8)))
    assert len({record["uid"] for record in records}) == 1
    assert len(api.seen("create", "pods")) == before + 1
    client.create_problem(409, "idempotency_conflict", headers={"Idempotency-Key": "key-1"}, labels={"x": "2"})
    # The same JSON, written otherwise, is the same body.
    again = client.request("POST", "/v1/sandboxes", 201, headers={"Idempotency-Key": "key-1", "Content-Type": "application/json"},
                           data='{ "labels": {"x":"1"} , "image":"localhost\\/python:1"}')
    assert again.json()["uid"] == records[0]["uid"]
    client.delete(records[0]["id"])
    client.create_problem(410, headers={"Idempotency-Key": "key-1"}, labels={"x": "1"})


def test_b17_same_key_after_a_restart(server, client):
    first = client.create(headers={"Idempotency-Key": "key-2"}, ttl=300)
    server.restart()
    assert client.create(headers={"Idempotency-Key": "key-2"}, ttl=300)["uid"] == first["uid"]
    client.create_problem(409, "idempotency_conflict", headers={"Idempotency-Key": "key-2"}, ttl=301)
    client.delete(first["id"])


def test_idempotency_key_syntax(client):
    client.problem("POST", "/v1/sandboxes", 400, json={}, headers={"Idempotency-Key": "x" * 256})


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
    assert client.exec("golden", ["printf", "%s", "$(A)"])["stdout"] == "$(A)"
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
