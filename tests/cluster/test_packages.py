"""The Python package podsandbox, as it is published, and ours side by side in one namespace."""

import asyncio
import json

import pytest
from podsandbox import Sandbox, SandboxConfig

from cluster import KUBECONFIG, NAMESPACE, get, kubectl, objects_of, pod_of
from server import wait_until


@pytest.fixture(scope="module")
def theirs():
    """theirs(id): that package's handle of a sandbox with a server's defaults."""
    from kubernetes import config
    config.load_kube_config(KUBECONFIG)
    return lambda id, **more: Sandbox(sandbox_id=id, config=SandboxConfig(namespace=NAMESPACE, **more))


def run(coroutine):
    return asyncio.run(coroutine)


@pytest.mark.parametrize("image", ["localhost/python:1", "localhost/busybox:1"])
def test_it_finds_uses_and_removes_ours(client, theirs, image):
    id = "shared"
    client.create(id, image=image)
    preview = client.post(f"/v1/sandboxes/{id}/previews", {"port": 8000, "wait": False}, 201)
    handle = theirs(id)
    assert run(handle.exists(id))
    assert not run(handle.exists("nobody-has-this"))
    result = run(handle.exec(["sh", "-c", "pwd; id -u; echo err >&2; exit 3"], env={"X": "1"}))
    assert (result.exit_code, result.stdout, result.stderr) == (3, "/workspace\n1000\n", "err\n")
    run(handle.write_file("from/them.txt", "hello\n"))
    assert client.read(id, "from/them.txt") == b"hello\n"
    client.put(id, "from/us.txt", b"hi\n")
    assert run(handle.read_file("from/us.txt")) == "hi\n"
    assert run(handle.list_files()) == ["from/them.txt", "from/us.txt"]
    assert client.tree(id, more="&format=paths")["items"] == ["from/them.txt", "from/us.txt"]
    assert preview["service"] == f"preview-{id}"

    run(handle.remove(id))
    record = client.wait_state(id, "gone")
    assert record["reason"] == "removed_externally"
    gone = client.problem("GET", f"/v1/sandboxes/{id}", 410, "gone")
    assert "removed_externally" in gone["detail"]
    client.exec_problem(id, ["true"], 410)
    assert wait_until(lambda: objects_of(id) == [], 30, "nothing being left")
    assert not run(handle.exists(id))
    client.create(id, image=image)  # the id is free
    client.delete(id)


def test_ours_leaves_theirs_alone(server, client, theirs):
    """A sandbox that the package made: shown on request, and never touched, nor is its name taken from it."""
    id = "theirs"
    config = {"cpu_request": "10m", "memory_request": "16Mi"}
    handle = theirs(id, **config)
    run(handle.start(image="localhost/busybox:1"))
    try:
        run(handle.start_service(["httpd", "-f", "-p", "8000"], port=8000))
        uid = pod_of(id)["metadata"]["uid"]
        assert client.post("/v1/admin/reap", {"dry_run": False}, 200)["dry_run"] is False
        assert id not in [item["id"] for item in client.get("/v1/admin/sandboxes")["items"]]
        foreign = [item for item in client.get("/v1/admin/sandboxes?foreign=true")["items"] if item["id"] == id]
        assert len(foreign) == 1, foreign
        client.problem("GET", f"/v1/sandboxes/{id}", 404)
        client.request("DELETE", f"/v1/sandboxes/{id}", (204, 404))
        problem = client.create_problem(409, id=id)
        assert problem["code"] in ("already_exists", "backend_conflict") and id in problem["detail"], problem
        other = client.create()["id"]
        taken = client.problem("POST", f"/v1/sandboxes/{other}/previews", 409, "host_taken",
                               json={"port": 8000, "subdomain": id, "wait": False})
        assert id in taken["detail"]
        client.delete(other)
        server.restart()
        client.post("/v1/admin/reap", {}, 200)
        assert pod_of(id)["metadata"]["uid"] == uid
        assert objects_of(id) == [f"Ingress/preview-{id}", f"Pod/sandbox-{id}", f"Service/preview-{id}"]
        assert run(handle.exec(["echo", "alive"])).stdout == "alive\n"
    finally:
        run(handle.stop())


def test_the_same_names_and_labels(client):
    """Whoever finds sandboxes by that package's conventions finds ours."""
    from podsandbox import ingress_manifest, pod_manifest, service_manifest
    id, config = "named", SandboxConfig(namespace=NAMESPACE)
    client.create(id)
    client.post(f"/v1/sandboxes/{id}/previews", {"port": 8000, "wait": False}, 201)
    for kind, wanted in (("pod", pod_manifest(id, image="localhost/python:1", config=config)),
                         ("service", service_manifest(id, port=8000, config=config)),
                         ("ingress", ingress_manifest(id, subdomain=id, port=8000, config=config))):
        ours = get(kind, "-n", NAMESPACE, wanted["metadata"]["name"])
        assert wanted["metadata"]["labels"].items() <= ours["metadata"]["labels"].items()
        if kind == "service":
            assert ours["spec"]["selector"].items() >= wanted["spec"]["selector"].items()
            assert [(p["port"], p["targetPort"]) for p in ours["spec"]["ports"]] == [(8000, 8000)]
        if kind == "ingress":
            assert ours["spec"]["ingressClassName"] == wanted["spec"]["ingressClassName"]
            assert ours["spec"]["rules"] == wanted["spec"]["rules"]
        if kind == "pod":
            container, theirs = ours["spec"]["containers"][0], wanted["spec"]["containers"][0]
            assert container["name"] == theirs["name"] and container["workingDir"] == theirs["workingDir"]
            assert container["securityContext"] == theirs["securityContext"]
            assert ours["spec"]["securityContext"] == wanted["spec"]["securityContext"]
            assert {m["mountPath"] for m in theirs["volumeMounts"]} <= {m["mountPath"] for m in container["volumeMounts"]}
    client.delete(id)


def test_removed_by_kubectl(client):
    """B38: a command that runs meanwhile ends at once and says why."""
    client.create("snatched")
    started = client.start("snatched", ["sleep", "600"])
    kubectl("delete", "pod", "-n", NAMESPACE, "sandbox-snatched", "--grace-period=0", "--force")
    result = client.exec_wait("snatched", started["id"])
    assert (result["exit_code"], result["error"]["code"]) == (None, "sandbox_gone")
    assert client.wait_state("snatched", "gone")["reason"] == "removed_externally"
    assert json.dumps(client.get("/v1/sandboxes/snatched/events")).count("removed_externally") >= 1
