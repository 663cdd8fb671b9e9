"""podsandboxd as a pod with its ServiceAccount, and what it says when a right of its Role is missing."""

import copy
import functools
import json
import secrets
import subprocess

import pytest
import yaml

from cluster import (DOMAIN, HERE, TEST_LABEL, ClusterServer, answers, apply, foreign_pod, get, kubectl, namespace, objects_of,
                     wait_for_page)
from server import SERVER, Client, wait_until

BUSYBOX = "localhost/busybox:1"
SERVE = ["httpd", "-f", "-p", "8000"]


def manifest(name):
    return list(yaml.safe_load_all((HERE / "manifests" / name).read_text()))


def default_deny():
    return next(item for item in manifest("base.yaml") if item["kind"] == "NetworkPolicy")


# --- the server as a pod ----------------------------------------------------------------
def moved(item, server_space, sandbox_space):
    """The object, in this test's namespaces and under a name that no other installation has."""
    item = copy.deepcopy(item)
    spaces = {"podsandbox": server_space, "sandboxes": sandbox_space}
    metadata = item["metadata"]
    metadata["labels"] = {TEST_LABEL: "1", **metadata.get("labels", {})}
    if "namespace" in metadata:
        metadata["namespace"] = spaces[metadata["namespace"]]
    if item["kind"].startswith("ClusterRole"):
        metadata["name"] += "-" + server_space
    if item.get("roleRef", {}).get("kind") == "ClusterRole":
        item["roleRef"]["name"] += "-" + server_space
    for subject in item.get("subjects", []):
        subject["namespace"] = spaces[subject["namespace"]]
    if item["kind"] == "Deployment":
        container = item["spec"]["template"]["spec"]["containers"][0]
        container["args"] = [f"--namespace={sandbox_space}" if arg == "--namespace=sandboxes" else arg for arg in container["args"]]
    return item


def make_secret(space, directory, key):
    hashed = subprocess.run([SERVER, "hash-key"], input=key, capture_output=True, text=True, check=True).stdout.strip()
    (directory / "api-keys").write_text(f"{hashed} alice user\n")
    (directory / "seal.key").write_text(secrets.token_hex(32))
    kubectl("create", "secret", "generic", "podsandboxd", "-n", space,
            *(f"--from-file={name}={directory / name}" for name in ("api-keys", "seal.key")))


@pytest.fixture(scope="module")
def pod_server(clean_cluster, tmp_path_factory):
    """(client, sandboxes' namespace) of a podsandboxd that is a pod, as the manifests have it."""
    key = "key-" + secrets.token_hex(16)
    enforce = "restricted"
    cluster_wide = "clusterroles,clusterrolebindings"
    with namespace(enforce=enforce) as space, namespace(default_deny(), enforce=enforce) as boxes:
        make_secret(space, tmp_path_factory.mktemp("in-cluster"), key)
        items = [item for item in manifest("rbac.yaml") + manifest("server.yaml") if item["kind"] != "Namespace"]
        kubectl("delete", cluster_wide, "-l", TEST_LABEL)
        try:
            apply(*(moved(item, space, boxes) for item in items))
            rolled = kubectl("rollout", "status", "deployment/podsandboxd", "-n", space, "--timeout=60s", check=False)
            assert rolled.returncode == 0, kubectl("logs", "deployment/podsandboxd", "-n", space, check=False).stdout
            address = get("service", "podsandboxd", "-n", space)["spec"]["clusterIP"]
            client = Client(f"http://{address}", key)
            wait_until(lambda: answers(client, "/readyz"), 30, "the Service leading to the pod")
            yield client, boxes
        finally:
            kubectl("delete", cluster_wide, "-l", TEST_LABEL)


def test_the_main_job_through_the_pod(pod_server):
    client, space = pod_server
    record = client.create("in-cluster", image=BUSYBOX, resources={"cpu_request": "10m", "memory_request": "16Mi"})
    assert (record["state"], record["owner"]) == ("running", "alice") and record["ready"]
    assert client.exec("in-cluster", ["true"])["exit_code"] == 0
    client.put("in-cluster", "hi.txt", b"hi\n", expect=201)
    assert client.read("in-cluster", "hi.txt") == b"hi\n"
    preview = client.post("/v1/sandboxes/in-cluster/previews", {"command": SERVE, "port": 8000}, 201)
    assert preview["url"] == f"http://in-cluster.{DOMAIN}/"
    assert wait_for_page(preview["host"], path="/hi.txt").text == "hi\n"
    assert objects_of("in-cluster", space) == ["Ingress/preview-in-cluster", "Pod/sandbox-in-cluster", "Service/preview-in-cluster"]
    assert [item["id"] for item in client.list()] == ["in-cluster"]
    client.delete("in-cluster")
    assert objects_of("in-cluster", space) == [] and client.list() == []
    assert client.get("/v1/capabilities")["warnings"] == []


def test_the_pod_wants_the_key(pod_server):
    client, _ = pod_server
    for key in (None, "key-of-nobody"):
        Client(client.base, key).problem("GET", "/v1/sandboxes", 401)


# --- a right is missing -----------------------------------------------------------------
def rules():
    return next(item for item in manifest("rbac.yaml") if item["kind"] == "Role")["rules"]


RIGHTS = [(resource, verb) for rule in rules() for resource in rule["resources"] for verb in rule["verbs"]]


def rules_without(taken):
    """Each resource in a rule of its own, less that right."""
    return [{"apiGroups": rule["apiGroups"], "resources": [resource],
             "verbs": [verb for verb in rule["verbs"] if (resource, verb) != taken]}
            for rule in rules() for resource in rule["resources"]]


@pytest.fixture(scope="module")
def space(clean_cluster):
    with namespace(default_deny(), enforce="restricted") as name:
        yield name


@functools.cache
def admin_config():
    return json.loads(kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json").stdout)


class LimitedServer(ClusterServer):
    """Its kubeconfig is that of a ServiceAccount whose Role is that of rbac.yaml, less one right."""

    def __init__(self, directory, space, taken):
        self.account = "limited-" + secrets.token_hex(3)
        self.taken = taken
        super().__init__(directory, ["--ingress-from", "ingress-nginx:app.kubernetes.io/name=ingress-nginx", "--ready-timeout", "10",
                                     "--agent-delivery", "image-volume"], namespace=space)

    def write_kubeconfig(self, *_):
        meta = {"name": self.account, "namespace": self.namespace}
        group = "rbac.authorization.k8s.io"
        apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
              {"apiVersion": group + "/v1", "kind": "Role", "metadata": meta, "rules": rules_without(self.taken)},
              {"apiVersion": group + "/v1", "kind": "RoleBinding", "metadata": meta,
               "roleRef": {"apiGroup": group, "kind": "Role", "name": self.account},
               "subjects": [{"kind": "ServiceAccount", **meta}]})
        token = kubectl("create", "token", self.account, "-n", self.namespace).stdout.strip()
        config = copy.deepcopy(admin_config())
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
        self.kubeconfig = self.dir / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(config))

    def sweep(self):
        """What is left goes with the namespace."""


@pytest.fixture
def limited(space, tmp_path):
    """limited(right): a server that lacks it, started but perhaps not ready."""
    made = []

    def make(taken):
        made.append(LimitedServer(tmp_path, space, taken).spawn())
        wait_until(lambda: made[0].answers("/healthz") == 200 or made[0].process.poll() is not None, 30, "the server answering")
        assert made[0].process.poll() is None, made[0].log()
        return made[0]
    yield make
    for server in made:
        server.stop()


def job(client, id):
    """The main job's steps, each with what was said: the bodies of answers that are errors, or ''."""
    def step(method, path, body=None):
        answer = client.request(method, path, json=body, timeout=60)
        return answer.text if answer.status_code >= 400 else ""
    yield step("POST", "/v1/sandboxes", {"id": id, "image": BUSYBOX})
    yield step("POST", f"/v1/sandboxes/{id}/execs", {"cmd": ["true"]})
    yield step("POST", f"/v1/sandboxes/{id}/previews", {"command": SERVE, "port": 8000})
    yield step("DELETE", f"/v1/sandboxes/{id}/previews/8000")
    yield step("DELETE", f"/v1/sandboxes/{id}")


def somebody_elses(resource, id):
    """An object in the way of the sandbox's or its preview's: the server must look whose it is."""
    if resource == "pods":
        return foreign_pod(f"sandbox-{id}", None)
    kind, version, spec = {
        "services": ("Service", "v1", {"ports": [{"port": 8000}]}),
        "ingresses": ("Ingress", "networking.k8s.io/v1", {"defaultBackend": {"service": {"name": "none", "port": {"number": 80}}}}),
        "networkpolicies": ("NetworkPolicy", "networking.k8s.io/v1", {"podSelector": {"matchLabels": {"no": "pod"}}}),
    }[resource]
    return {"apiVersion": version, "kind": kind, "metadata": {"name": f"preview-{id}"}, "spec": spec}


def warnings(client):
    return "\n".join(client.get("/v1/capabilities")["warnings"])


def settled(client):
    """What /readyz says at last: '' when ready, or that something is not allowed."""
    def look():
        answer = client.request("GET", "/readyz")
        return [answer] if answer.status_code == 200 or "cannot" in answer.text else None
    answer = wait_until(look, 30, "/readyz settling")[0]
    return "" if answer.status_code == 200 else answer.json()["detail"]


def names(text, resource, verb):
    """In the API server's words, or in ours where it has none (an upgrade that its second check refuses)."""
    text = text.replace('\\"', '"')
    return f'cannot {verb} resource "{resource}"' in text or f"not allowed to {verb} {resource} " in text


def test_with_all_rights_nothing_is_said(limited):
    client = limited(None).client()
    assert settled(client) == ""
    assert list(job(client, "all-rights")) == [""] * 5
    assert warnings(client) == ""


@pytest.mark.parametrize("right", RIGHTS, ids=lambda right: "-".join(right).replace("/", "-"))
def test_a_missing_right_is_named(limited, space, right):
    resource, verb = right
    client = limited(right).client()
    id = "box-" + secrets.token_hex(3)
    said = [settled(client)]
    if resource == "events":  # only the reasons of failures are less exact without them
        assert said == [""]
        assert list(job(client, id)) == [""] * 5
        wait_until(lambda: names(warnings(client), resource, verb), 20, lambda: f"a warning: {warnings(client)}")
        return
    if verb == "get" and resource != "pods/exec":
        kubectl("apply", "-n", space, "-f", "-", stdin=json.dumps(somebody_elses(resource, id)))
    steps = job(client, id)
    while not names(said[-1], resource, verb):
        text = next(steps, None)
        if text is None:
            said.append(warnings(client) + client.request("GET", "/readyz").text)
            break
        said.append(text)
    assert names(said[-1], resource, verb), said
