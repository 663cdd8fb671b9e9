"""podsandboxd on the real cluster, and what the tests ask the cluster itself."""

import fcntl
import json
import os
import secrets
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import requests
import yaml

from server import Server, wait_until

HERE = Path(__file__).resolve().parent
INGRESS = os.environ.get("PODSANDBOX_INGRESS", "10.96.255.1:80")
KUBECONFIG = os.environ.get("KUBECONFIG", "")
PREFIX = "cluster-tests-"  # of the instances and namespaces of all tests here
NAMESPACE = PREFIX + secrets.token_hex(3)  # where this run's sandboxes are
TEST_LABEL = "podsandbox.dev/cluster-tests"  # on other objects that tests make
ID, INSTANCE = "podsandbox.dev/sandbox-id", "podsandbox.dev/instance"
KINDS = "pods,services,ingresses,networkpolicies"
DOMAIN = "127.0.0.1.nip.io"
SMALL = {"cpu_request": "10m", "memory_request": "16Mi"}  # what a test's sandbox asks of the small node


def own_kubeconfig():
    """Of the cluster that tests/cluster/up starts."""
    script = '. "$0/env.sh"; echo "$admin_kubeconfig"'
    return subprocess.run(["sh", "-c", script, HERE], capture_output=True, text=True, check=True).stdout.strip()


IS_OWN = KUBECONFIG == own_kubeconfig()


# --- the cluster ------------------------------------------------------------------------
def kubectl(*args, check=True, stdin=None, timeout=120):
    """The completed process; its output is text."""
    done = subprocess.run(["kubectl", *map(str, args)], capture_output=True, text=True, input=stdin, timeout=timeout)
    assert not check or done.returncode == 0, f"kubectl {args}: {done.stderr}"
    return done


def get(kind, *args):
    """The objects of KIND, or the one that ARGS name."""
    answer = json.loads(kubectl("get", kind, "-o", "json", *args).stdout)
    return answer["items"] if answer["kind"] == "List" else answer


def apply(*objects):
    kubectl("apply", "-f", "-", stdin="\n---\n".join(o if isinstance(o, str) else json.dumps(o) for o in objects))


def objects_of(sandbox_id, namespace=NAMESPACE):
    """`kind/name` of all that carries the id."""
    return sorted(f"{item['kind']}/{item['metadata']['name']}"
                  for item in get(KINDS, "-n", namespace, "-l", f"{ID}={sandbox_id}"))


def pod_of(sandbox_id, namespace=NAMESPACE):
    return get("pod", "-n", namespace, f"sandbox-{sandbox_id}")


def pods_of(server):
    return get("pods", "-n", server.namespace, "-l", f"{INSTANCE}={server.instance}")


def foreign_pod(name, namespace=NAMESPACE, labels=None, command=("sleep", "3600"), image="localhost/busybox:1", **spec):
    """A pod that passes PodSecurity `restricted` and that no podsandboxd made."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {TEST_LABEL: "1", **(labels or {})}},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False,
                     "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
                     "containers": [{"name": "main", "image": image, "command": list(command), "securityContext": security}],
                     **spec}}


def api_server(action):
    subprocess.run([HERE / "apiserver", action], check=True, capture_output=True, text=True, timeout=90)


@contextmanager
def api_server_down():
    api_server("stop")
    try:
        yield
    finally:
        api_server("start")


@contextmanager
def namespace(*more, name=None, enforce=None):
    """A namespace with the objects MORE in it, for as long as it is needed."""
    name = name or PREFIX + secrets.token_hex(4)
    labels = {TEST_LABEL: "1", **({"pod-security.kubernetes.io/enforce": enforce} if enforce else {})}
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    wait_until(lambda: kubectl("get", "serviceaccount", "default", "-n", name, check=False).returncode == 0, 30,
               "the namespace's service account")
    for item in more:
        item["metadata"]["namespace"] = name
        apply(item)
    try:
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


@contextmanager
def sandboxes_namespace():
    """As manifests/base.yaml has it, under the name of this run, so that nobody else is in its way."""
    base = {item["kind"]: item for item in yaml.safe_load_all((HERE / "manifests/base.yaml").read_text())}
    enforce = base["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    with namespace(base["NetworkPolicy"], name=NAMESPACE, enforce=enforce):
        yield


@contextmanager
def one_run_at_a_time():
    with open(Path(tempfile.gettempdir()) / "podsandbox-cluster-tests.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def sweep_leftovers():
    """What an interrupted run of these tests left; nothing else."""
    for item in get(KINDS, "-A", "-l", INSTANCE):
        if item["metadata"]["labels"][INSTANCE].startswith(PREFIX):
            remove(item)
    for item in get(KINDS, "-A", "-l", TEST_LABEL):
        remove(item)
    kubectl("delete", "namespaces", "-l", TEST_LABEL, "--wait=false")
    kubectl("delete", "validatingadmissionpolicies,validatingadmissionpolicybindings,runtimeclasses", "-l", TEST_LABEL)


def remove(item):
    kubectl("delete", item["kind"], item["metadata"]["name"], "-n", item["metadata"]["namespace"], "--grace-period=0",
            "--force", "--ignore-not-found", "--wait=false")


# --- the server -------------------------------------------------------------------------
class ClusterServer(Server):
    """podsandboxd on the cluster, outside of it. All its lives have one instance name, key and port."""

    def __init__(self, directory, options=(), keys=None, env=None, namespace=NAMESPACE, instance=None):
        self.namespace = namespace
        self.instance = instance or PREFIX + secrets.token_hex(4)
        super().__init__(None, directory, options, keys, env)

    def write_kubeconfig(self, *_):
        self.kubeconfig = Path(KUBECONFIG)

    def driver_options(self):
        return ["--driver", "kubernetes", "--kubeconfig", self.kubeconfig, "--namespace", self.namespace,
                "--instance", self.instance, "--agent-image", "localhost/podsandbox:1",
                "--cpu-request", SMALL["cpu_request"], "--memory-request", SMALL["memory_request"],
                "--preview-domain", DOMAIN, "--ingress-class", "nginx"]

    def sweep(self):
        """Nothing of this instance stays in the cluster."""
        for item in get(KINDS, "-n", self.namespace, "-l", f"{INSTANCE}={self.instance}"):
            remove(item)


def key_of(server):
    return next(iter(server.keys), None)


# --- clients ----------------------------------------------------------------------------
def curl(*args, stdin=None):
    """Plain curl: (status, body). Everything a user needs."""
    done = subprocess.run(["curl", "--silent", "--show-error", "--max-time", "120", "--noproxy", "*", "--output", "-",
                           "--write-out", "\n%{http_code}", *map(str, args)], capture_output=True, input=stdin)
    assert done.returncode == 0, done.stderr
    body, _, status = done.stdout.rpartition(b"\n")
    return int(status), body


def answers(client, path="/readyz"):
    """A Service leads to a pod some time after that is ready."""
    try:
        return client.request("GET", path, timeout=5).status_code == 200
    except requests.RequestException:
        return False


def through_ingress(host, path="/", **options):
    """What a browser gets at that host name. Its name server would say where the controller is; here we do."""
    session = requests.Session()
    session.trust_env = False
    return session.get(f"http://{INGRESS}{path}", headers={"Host": host}, timeout=5, **options)


def wait_for_page(host, wanted=200, path="/", timeout=30):
    """The controller needs a moment to learn of an Ingress."""
    seen = []

    def look():
        try:
            answer = through_ingress(host, path)
        except requests.RequestException as failure:
            seen.append(failure)
            return None
        seen.append(answer.status_code)
        return [answer] if answer.status_code == wanted else None  # an answer of 404 is false by itself
    try:
        return wait_until(look, timeout, f"{wanted} from http://{host}{path}")[0]
    except AssertionError as failure:
        raise AssertionError(f"{failure}; the last answers: {seen[-5:]}") from None
