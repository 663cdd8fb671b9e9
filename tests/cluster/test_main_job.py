"""The main job with plain curl: create, commands, files, preview, delete; on every image and runtime."""

import json
import subprocess

import pytest

from cluster import DOMAIN, NAMESPACE, curl, get, kubectl, objects_of, wait_for_page

PYTHON = {"id": "job-python", "image": "localhost/python:1"}
BUSYBOX = {"id": "job-busybox", "image": "localhost/busybox:1"}
GVISOR = {"id": "job-gvisor", "image": "localhost/python:1", "runtime_class": "gvisor"}


class Curl:
    """curl with the server's address in front, and JSON."""

    def __init__(self, url):
        self.url = url

    def json(self, method, path, wanted, body=None):
        args = ["--request", method, self.url + path]
        if body is not None:
            args += ["--header", "Content-Type: application/json", "--data", json.dumps(body)]
        status, answer = curl(*args)
        assert status == wanted, answer
        return json.loads(answer) if answer else None

    def exec(self, id, *cmd, **more):
        return self.json("POST", f"/v1/sandboxes/{id}/execs", 200, {"cmd": cmd, **more})

    def file(self, id, path, more=""):
        return f"{self.url}/v1/sandboxes/{id}/files?path={path}{more}"


@pytest.fixture
def by_curl(server):
    return Curl(server.url)


def files_work(by_curl, id):
    status, answer = curl("--request", "PUT", "--data-binary", "@-", by_curl.file(id, "hi.txt"), stdin=b"hi\n")
    assert status == 201, answer
    assert curl(by_curl.file(id, "hi.txt")) == (200, b"hi\n")
    status, _ = curl("--request", "PUT", "--data-binary", "@-", by_curl.file(id, "/workspace/.token", "&mode=0600"), stdin=b"t")
    assert status == 201
    assert curl("--request", "PUT", "--data-binary", "@-", by_curl.file(id, ".git/config"), stdin=b"x")[0] == 201
    listing = by_curl.json("GET", f"/v1/sandboxes/{id}/tree?format=paths", 200)
    assert listing["items"] == [".token", "hi.txt"]
    entries = {item["path"]: item for item in by_curl.json("GET", f"/v1/sandboxes/{id}/tree", 200)["items"]}
    assert entries[".token"]["mode"] == "0600" and entries["hi.txt"]["mode"] == "0644"


def is_gone(by_curl, id):
    assert objects_of(id) == []
    assert curl("--request", "DELETE", f"{by_curl.url}/v1/sandboxes/{id}") == (204, b"")
    gone = by_curl.json("GET", f"/v1/sandboxes/{id}", 410)
    assert gone["code"] == "gone" and "deleted" in gone["detail"] and gone["sandbox"]["reason"] == "deleted"
    assert curl("--head", f"{by_curl.url}/v1/sandboxes/{id}")[0] == 410


@pytest.mark.parametrize("spec", [PYTHON, BUSYBOX, GVISOR], ids=lambda spec: spec["id"])
def test_the_main_job(by_curl, spec):
    assert get("namespace", NAMESPACE)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    id = spec["id"]
    record = by_curl.json("POST", "/v1/sandboxes", 201, spec)
    assert record["state"] == "running" and record["ready"]

    if spec["image"] == "localhost/python:1":
        result = by_curl.exec(id, "python3", "-c", "print(6*7)")
        assert (result["stdout"], result["exit_code"]) == ("42\n", 0)
    assert by_curl.exec(id, "sh", "-c", "exit 3")["exit_code"] == 3
    release = by_curl.exec(id, "uname", "-r")["stdout"].strip()
    here = subprocess.run(["uname", "-r"], capture_output=True, text=True).stdout.strip()
    assert (release != here and release.startswith("4.")) if spec is GVISOR else release == here

    files_work(by_curl, id)
    assert by_curl.exec(id, "stat", "-c", "%a %u", "/workspace/.token")["stdout"] == "600 1000\n"

    serve = ["httpd", "-f", "-p", "8000"] if spec is BUSYBOX else ["python3", "-m", "http.server", "8000"]
    preview = by_curl.json("POST", f"/v1/sandboxes/{id}/previews", 201, {"command": serve, "port": 8000})
    assert preview["url"] == f"http://{id}.{DOMAIN}/" and preview["state"] == "ready"
    assert wait_for_page(preview["host"], path="/hi.txt").text == "hi\n"
    assert objects_of(id) == [f"Ingress/preview-{id}", f"Pod/sandbox-{id}", f"Service/preview-{id}"]

    assert curl("--request", "DELETE", f"{by_curl.url}/v1/sandboxes/{id}") == (204, b"")
    is_gone(by_curl, id)


def test_distroless(by_curl):
    id = "job-distroless"
    by_curl.json("POST", "/v1/sandboxes", 201, {"id": id, "image": "localhost/distroless:1"})
    result = by_curl.exec(id, "/say", "hello", "3")
    assert (result["stdout"], result["exit_code"]) == ("hello 3\n", 3)
    assert by_curl.exec(id, "sh", "-c", "true")["error"]["code"] == "command_not_found"
    files_work(by_curl, id)
    edited = by_curl.json("PATCH", f"/v1/sandboxes/{id}/files?path=hi.txt", 200, {"old": "hi", "new": "ho", "count": 1})
    assert edited["count"] == 1
    by_curl.json("PATCH", f"/v1/sandboxes/{id}/files?path=hi.txt", 200, {"to": "a/b.txt"})
    by_curl.json("PATCH", f"/v1/sandboxes/{id}/files?path=a/b.txt", 200, {"mode": "0400"})
    assert curl(by_curl.file(id, "a/b.txt")) == (200, b"ho\n")
    assert curl("--range", "1-1", by_curl.file(id, "a/b.txt")) == (206, b"o")
    assert curl("--head", by_curl.file(id, "a/b.txt"))[0] == 200
    assert curl("--request", "DELETE", by_curl.file(id, "a", "&recursive=true"))[0] == 204
    assert curl(by_curl.file(id, "a/b.txt"))[0] == 404
    by_curl.json("DELETE", f"/v1/sandboxes/{id}", 204)
    is_gone(by_curl, id)


def test_one_id_again_and_again(by_curl):
    """Create, preview, delete of the same id in a row: nothing of the life before is in the way."""
    uids = set()
    rounds = 20
    for _ in range(rounds):
        record = by_curl.json("POST", "/v1/sandboxes", 201, {"id": "again", "image": "localhost/busybox:1"})
        uids.add(record["uid"])
        preview = by_curl.json("POST", "/v1/sandboxes/again/previews", 201, {"command": ["httpd", "-f", "-p", "80"], "port": 80})
        assert preview["state"] == "ready"
        by_curl.json("DELETE", "/v1/sandboxes/again", 204)
        assert objects_of("again") == []
    assert len(uids) == rounds


def test_git_clones_into_the_workdir(by_curl):
    id = "job-git"
    by_curl.json("POST", "/v1/sandboxes", 201, {"id": id, "image": "localhost/python:1"})
    made = by_curl.exec(id, "sh", "-c", """
        set -e
        git init -q -b main /tmp/source && cd /tmp/source
        echo hello >README && git add README
        git -c user.name=a -c user.email=a@example.org commit -q -m first""", workdir="/tmp")
    assert made["exit_code"] == 0, made["stderr"]
    clone = by_curl.exec(id, "git", "clone", "-q", "/tmp/source", ".")
    assert clone["exit_code"] == 0, clone["stderr"]
    status = by_curl.exec(id, "git", "status", "--short", "--branch")
    assert (status["exit_code"], status["stdout"]) == (0, "## main...origin/main\n"), status["stderr"]
    assert by_curl.json("GET", f"/v1/sandboxes/{id}/tree?format=paths", 200)["items"] == ["README"]
    by_curl.json("DELETE", f"/v1/sandboxes/{id}", 204)


def test_the_cluster_has_the_pod_as_hardened_as_promised(client, box):
    pod = get("pod", "-n", NAMESPACE, f"sandbox-{box}")
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    assert container["name"] == "sandbox" and len(spec["containers"]) == 1
    assert not spec["automountServiceAccountToken"] and not spec["enableServiceLinks"] and spec["restartPolicy"] == "Never"
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 1000
    assert spec["securityContext"]["fsGroup"] == 1000 and spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert set(container["resources"]["limits"]) == {"cpu", "memory", "ephemeral-storage"}
    assert spec["activeDeadlineSeconds"] > 3600 and spec["terminationGracePeriodSeconds"] <= 2
    assert all("sizeLimit" in volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume)
    inside = client.exec(box, "touch /usr/x; grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status; ls /var/run/secrets")
    assert "Read-only file system" in inside["stderr"] and "No such file" in inside["stderr"]
    assert inside["stdout"].split() == ["CapEff:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"]
    assert kubectl("get", "pod", "-n", NAMESPACE, f"sandbox-{box}", "-o", "yaml").stdout.count("$(") == 0
