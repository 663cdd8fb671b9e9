"""The chart's whole life on the cluster: install, the main job from another pod and through the ingress, upgrade and rollback
while a command runs, the rights of the running pod, uninstall that leaves nothing."""

import json
import tempfile

import pytest

from chart import CHART, flags, helm, secret_of
from cluster import DOMAIN, INGRESS, SMALL, TEST_LABEL, answers, apply, curl, foreign_pod, get, kubectl, namespace, wait_for_page
from server import Client, wait_until

RELEASE = "box"
NAME = "box-podsandboxd"
BUSYBOX = "localhost/busybox:1"
API_HOST = f"chart-api.{DOMAIN}"
PATIENT = 'i=0; while [ $i -lt 600 ]; do echo line $i; i=$((i+1)); [ -e /tmp/go ] && [ $i -ge 50 ] && exit 7; sleep 0.1; done'


def volume(space, directory):
    """A place on the node for the store, bound to the chart's claim."""
    node = get("nodes")[0]["metadata"]["name"]
    on_node = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"store-{space}", "labels": {TEST_LABEL: "1"}},
            "spec": {"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "local": {"path": directory},
                     "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": space, "name": NAME},
                     "nodeAffinity": {"required": on_node}}}


class Installation:
    def __init__(self, space):
        self.space, self.boxes = space, f"{space}-boxes"
        self.values = {"sandboxes.namespace": self.boxes, "ingress.enabled": True, "ingress.host": API_HOST, "preview.domain": DOMAIN,
                       "settings": {"cpu-request": SMALL["cpu_request"], "memory-request": SMALL["memory_request"], "ttl": 1800},
                       "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}}}

    def helm(self, action, *more, **values):
        self.values |= values
        done = helm(action, RELEASE, CHART, "-n", self.space, "--wait", "--timeout", "120s", *more, *flags(self.values), check=False)
        assert done.returncode == 0, done.stderr + kubectl("logs", "-n", self.space, f"deployment/{NAME}", "--tail=20", check=False).stdout

    def client(self):
        address = get("service", NAME, "-n", self.space)["spec"]["clusterIP"]
        client = Client(f"http://{address}", secret_of(NAME, self.space)["admin-key"], image=BUSYBOX)
        wait_until(lambda: answers(client), 30, "the Service leading to the server")
        return client

    def server_pods(self):
        return [item["metadata"]["name"] for item in get("pods", "-n", self.space, "-l", "app.kubernetes.io/name=podsandboxd")]


@pytest.fixture(scope="module")
def installed(clean_cluster):
    with namespace(enforce="restricted") as space, tempfile.TemporaryDirectory(prefix="podsandbox-chart-") as directory:
        it = Installation(space)
        apply(volume(space, directory))
        try:
            it.helm("install")
            yield it
        finally:
            helm("uninstall", RELEASE, "-n", space, "--wait", check=False)
            kubectl("delete", "namespace", it.boxes, "--ignore-not-found", "--wait=false")
            kubectl("delete", "persistentvolume", f"store-{space}", "--wait=false")


def from_a_pod(it, *words):
    """What curl prints in a pod of the cluster."""
    done = kubectl("exec", "-n", it.space, "caller", "--", "curl", "-sS", "--max-time", "60", *words)
    return done.stdout


def test_the_main_job_from_another_pod(installed):
    client = installed.client()
    apply(foreign_pod("caller", installed.space, image="localhost/python:1"))
    kubectl("wait", "--for=condition=Ready", "pod/caller", "-n", installed.space, "--timeout=60s")
    auth, kind = ("-H", f"Authorization: Bearer {client.key}"), ("-H", "Content-Type: application/json")
    api = client.base + "/v1/sandboxes"
    made = json.loads(from_a_pod(installed, *auth, *kind, api, "-d", json.dumps({"id": "main", "image": BUSYBOX})))
    assert (made["state"], made["owner"]) == ("running", "admin")
    ran = json.loads(from_a_pod(installed, *auth, *kind, f"{api}/main/execs", "-d", json.dumps({"cmd": ["sh", "-c", "echo 42; exit 3"]})))
    assert (ran["stdout"], ran["exit_code"]) == ("42\n", 3)
    assert json.loads(from_a_pod(installed, api))["status"] == 401


def test_through_the_ingress(installed):
    client = installed.client()
    wait_for_page(API_HOST, path="/healthz")
    status, body = curl("-H", f"Host: {API_HOST}", "-H", f"Authorization: Bearer {client.key}", f"http://{INGRESS}/v1/sandboxes/main")
    assert status == 200 and json.loads(body)["id"] == "main"
    preview = client.post("/v1/sandboxes/main/previews", {"command": ["httpd", "-f", "-p", "8000"], "port": 8000}, 201)
    client.put("main", "hi.txt", b"hi\n", expect=201)
    assert wait_for_page(preview["host"], path="/hi.txt").text == "hi\n"


def test_the_namespace_keeps_sandboxes_in(installed):
    """Nothing of the cluster is reached from a sandbox: the policies of the chart are in force."""
    client = installed.client()
    result = client.exec("main", ["wget", "-q", "-T", "3", "-O", "-", f"{client.base}/healthz"])
    assert result["exit_code"] != 0 and result["stdout"] == ""
    space = get("namespace", installed.boxes)
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert client.get("/v1/capabilities")["warnings"] == []
    large = foreign_pod("large", installed.boxes)
    large["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "9", "memory": "1Gi"}}
    refused = kubectl("create", "-f", "-", check=False, stdin=json.dumps(large))
    assert refused.returncode != 0 and "maximum cpu usage per Container is 8" in refused.stderr


def test_the_pod_has_the_charts_rights_and_no_other(installed):
    account = f"system:serviceaccount:{installed.space}:{NAME}"
    role = get("role", NAME, "-n", installed.boxes)
    listed = {(group, resource, verb) for rule in role["rules"] for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": installed.boxes}}
    done = kubectl("create", "--validate=false", "-o", "json", "--as", account, "-f", "-", stdin=json.dumps(review))
    rules = json.loads(done.stdout)["status"]["resourceRules"]
    allowed = {(group, resource, verb) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]}
    everyone = {item for item in allowed if item[0] in ("authorization.k8s.io", "authentication.k8s.io")}
    assert allowed - everyone == listed | {("node.k8s.io", "runtimeclasses", "get")}
    elsewhere = kubectl("auth", "can-i", "list", "pods", "-n", installed.space, "--as", account, check=False)
    assert elsewhere.stdout.strip() == "no"


def running_command(client, box):
    return client.post(f"/v1/sandboxes/{box}/execs", {"cmd": ["sh", "-c", PATIENT], "detach": True}, 202)["id"]


def its_end(client, box, number):
    client.put(box, "/tmp/go", b"", expect=201)
    result = client.get(f"/v1/sandboxes/{box}/execs/{number}?wait=60")
    output = client.request("GET", f"/v1/sandboxes/{box}/execs/{number}/output?stream=stdout").text
    client.request("DELETE", f"/v1/sandboxes/{box}/files?path=/tmp/go")
    lines = output.splitlines()
    assert result["exit_code"] == 7 and lines == [f"line {i}" for i in range(len(lines))] and len(lines) >= 50, result


def change_while_it_runs(installed, change, ttl):
    client, before = installed.client(), secret_of(NAME, installed.space)
    number, pods = running_command(client, "main"), installed.server_pods()
    change()
    assert not set(installed.server_pods()) & set(pods), "the server was not replaced"
    assert secret_of(NAME, installed.space) == before
    client = installed.client()
    its_end(client, "main", number)
    assert [item["id"] for item in client.list()] == ["main"]
    assert client.create(f"ttl-{ttl}")["ttl"] == ttl
    client.delete(f"ttl-{ttl}")


def test_upgrade_and_rollback_lose_no_command(installed):
    settings = {**installed.values["settings"], "ttl": 900}
    change_while_it_runs(installed, lambda: installed.helm("upgrade", settings=settings), 900)
    change_while_it_runs(installed, lambda: helm("rollback", RELEASE, "1", "-n", installed.space, "--wait", "--timeout", "120s"), 1800)


def test_uninstall_leaves_nothing(installed):
    """Not even the sandboxes that still run."""
    kinds = "all,ingresses,networkpolicies,configmaps,secrets,serviceaccounts,roles,rolebindings,persistentvolumeclaims"
    ours = f"app.kubernetes.io/instance={RELEASE}"
    assert get(kinds, "-n", installed.space, "-l", ours) and installed.client().list()
    helm("uninstall", RELEASE, "-n", installed.space, "--wait")
    kubectl("wait", "--for=delete", f"namespace/{installed.boxes}", "--timeout=120s", check=False)
    assert kubectl("get", "namespace", installed.boxes, check=False).returncode != 0
    wait_until(lambda: not get(kinds, "-n", installed.space, "-l", ours), 60, "what the chart made to go")
    assert [item for item in get("clusterroles,clusterrolebindings", "-l", ours)
            if item["metadata"]["name"].startswith(installed.space)] == []
