"""deploy/kind without kind, in the test cluster, and deploy/gvisor."""

import os
import re
import subprocess

import pytest
import yaml

from chart import ROOT
from cluster import PREFIX, SMALL, TEST_LABEL, answers, apply, get, kubectl
from server import Client, wait_until

UP, DOWN, CHECK = (ROOT / "deploy" / name for name in ("kind/up", "kind/down", "gvisor/check"))
BOXES = PREFIX + "kind-boxes"
NODE_PORT = 30080


def run(*command, env=None, expect=0):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=400, env=env)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.own_cluster
def test_what_kind_up_installs(clean_cluster, tmp_path):
    """The API and a preview at one port of the node; run again it changes nothing; down leaves nothing."""
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({
        "store": {"persistent": False}, "sandboxes": {"namespace": BOXES, "image": "localhost/busybox:1"}, "resources": None,
        "settings": {"cpu-request": SMALL["cpu_request"], "memory-request": SMALL["memory_request"]}}))
    try:
        said = run(UP, "--here", "--values", values)
        key = re.findall(r"export KEY=(\S+)", said)[-1]
        address = get("nodes")[0]["status"]["addresses"][0]["address"]
        client = Client(f"http://{address}:{NODE_PORT}", key, image="localhost/busybox:1")
        wait_until(lambda: answers(client), 30, "the port of the node leading to the server")
        assert client.create("first")["image"] == "localhost/busybox:1"
        assert client.exec("first", ["id", "-u"])["stdout"] == "1000\n"
        client.put("first", "index.html", b"<h1>here</h1>")
        assert client.preview("first", command=["httpd", "-f", "-p", "8000"])["url"] == "http://first.localhost/"
        page = Client(client.base).request("GET", "/", headers={"Host": "first.localhost"})
        assert (page.status_code, page.text) == (200, "<h1>here</h1>")
        assert f"export KEY={key}" in run(UP, "--here", "--values", values)
        wait_until(lambda: answers(client), 30, "the server")
        assert client.wait_state("first", "running") and client.exec("first", ["true"])["exit_code"] == 0
    finally:
        run(DOWN, "--here")
    assert kubectl("get", "namespace", "podsandbox", check=False).returncode != 0
    wait_until(lambda: kubectl("get", "namespace", BOXES, check=False).returncode != 0, 60, "the sandboxes' namespace to go")
    assert get("clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/instance=podsandboxd") == []


@pytest.mark.parametrize("script", [UP, DOWN, CHECK], ids=["up", "down", "check"])
def test_help_and_what_is_unknown(script, tmp_path):
    said = subprocess.run([script, "--help"], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert said.count("\n") >= 3 and "#!" not in said
    if script != CHECK:
        assert "unknown option '--nope'" in run(script, "--nope", expect=2)


@pytest.mark.own_cluster
def test_gvisor_is_told_from_a_name(clean_cluster):
    """A class whose handler is runc isolates nothing, whatever it is called."""
    env = {**os.environ, "IMAGE": "localhost/busybox:1"}
    assert re.fullmatch(r"(\S+: isolates\n)+", run(CHECK, env=env))
    name = PREFIX + "only-a-name"
    apply({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name, "labels": {TEST_LABEL: "1"}}, "handler": "runc"})
    assert "does NOT isolate" in run(CHECK, env={**env, "RUNTIME_CLASS": name}, expect=1)
    kubectl("delete", "runtimeclass", name)
    assert f"no RuntimeClass {name}" in run(CHECK, env={**env, "RUNTIME_CLASS": name}, expect=1)
    assert get("pods", "-n", "default") == []
