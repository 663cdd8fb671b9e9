"""Previews under default deny, with an ingress controller that is a pod, as real clusters have it."""

import pytest
import requests

from cluster import DOMAIN, HERE, NAMESPACE, ClusterServer, apply, foreign_pod, get, kubectl, objects_of, wait_for_page
from server import wait_until

CONTROLLER = "ingress-nginx:app.kubernetes.io/name=ingress-nginx"
DIAL = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"


@pytest.fixture(scope="module")
def published(clean_cluster, tmp_path_factory):
    """A server with --ingress-from, a sandbox with a preview and one without, and the controller's pod in front of it."""
    server = ClusterServer(tmp_path_factory.mktemp("network"), ["--ingress-from", CONTROLLER]).start()
    client = server.client()
    client.create("shown", ttl=3600)
    client.create("neighbour", ttl=3600)
    client.put("shown", "index.html", b"hello from the sandbox")
    client.post("/v1/sandboxes/shown/previews", {"command": ["python3", "-m", "http.server", "8000"], "port": 8000}, 201)
    service = get("service", "-n", NAMESPACE, "preview-shown")
    manifest = (HERE / "manifests/ingress-pod.yaml").read_text().replace("@BACKEND@", f"{service['spec']['clusterIP']}:8000")
    kubectl("delete", "pod", "nginx", "-n", "ingress-nginx", "--ignore-not-found", "--grace-period=0", "--force")
    apply(manifest)
    kubectl("wait", "--for=condition=Ready", "pod/nginx", "-n", "ingress-nginx", "--timeout=60s")
    yield server
    kubectl("delete", "namespace", "ingress-nginx", "--wait=false")
    server.stop()
    server.sweep()


def address(name, namespace=NAMESPACE):
    return get("pod", "-n", namespace, name)["status"]["podIP"]


def through_controller(status=200):
    def look():
        try:
            answer = requests.get(f"http://{address('nginx', 'ingress-nginx')}:8080/index.html", timeout=10,
                                  headers={"Host": f"shown.{DOMAIN}"})
        except requests.RequestException:
            return None
        return [answer] if answer.status_code == status else None
    return wait_until(look, 60, f"{status} through the controller's pod")[0]


def dials(client, id, host, port):
    return client.exec(id, ["python3", "-c", DIAL, host, str(port)], timeout=20)["exit_code"] == 0


def test_the_preview_is_reached_through_the_controllers_pod(published):
    assert objects_of("shown") == ["Ingress/preview-shown", "NetworkPolicy/preview-shown", "Pod/sandbox-shown",
                                   "Service/preview-shown"]
    assert through_controller().text == "hello from the sandbox"


def test_a_neighbour_is_refused(published):
    client = published.client()
    through_controller()
    assert dials(client, "shown", "127.0.0.1", 8000)  # the port is open
    assert not dials(client, "neighbour", address("sandbox-shown"), 8000)
    service = get("service", "-n", NAMESPACE, "preview-shown")
    assert not dials(client, "neighbour", service["spec"]["clusterIP"], 8000)


def test_the_controller_reaches_no_other_port(published):
    """Another pod with the controller's labels, as nginx cannot dial at will."""
    client = published.client()
    client.exec("shown", "python3 -m http.server 8001 >/dev/null 2>&1 &")
    wait_until(lambda: dials(client, "shown", "127.0.0.1", 8001), 20, "the other port being open")
    apply(foreign_pod("prober", "ingress-nginx", {"app.kubernetes.io/name": "ingress-nginx"}, image="localhost/python:1"))
    kubectl("wait", "--for=condition=Ready", "pod/prober", "-n", "ingress-nginx", "--timeout=60s")

    def probe(port):
        return kubectl("exec", "-n", "ingress-nginx", "prober", "--", "python3", "-c", DIAL, address("sandbox-shown"), port,
                       check=False).returncode == 0
    wait_until(lambda: probe(8000), 30, "the policy letting the prober in")
    assert not probe(8001)


def test_a_deleted_preview_closes_its_port(published):
    client = published.client()
    client.post("/v1/sandboxes/neighbour/previews", {"command": ["python3", "-m", "http.server", "9000"], "port": 9000}, 201)
    assert "NetworkPolicy/preview-neighbour" in objects_of("neighbour")
    client.request("DELETE", "/v1/sandboxes/neighbour/previews/9000", 204)
    assert objects_of("neighbour") == ["Pod/sandbox-neighbour"]
    assert client.exec("neighbour", ["python3", "-c", DIAL, "127.0.0.1", "9000"])["exit_code"] != 0  # its command has ended


def test_a_second_port_has_a_host_of_its_own(published):
    client = published.client()
    client.put("shown", "other/index.html", b"the other one")
    preview = client.post("/v1/sandboxes/shown/previews",
                          {"command": ["python3", "-m", "http.server", "8002", "--directory", "other"], "port": 8002}, 201)
    assert preview["host"] == f"8002-shown.{DOMAIN}"
    assert wait_for_page(preview["host"]).text == "the other one"
    assert wait_for_page(f"shown.{DOMAIN}", path="/index.html").text == "hello from the sandbox"
    assert "Service/preview8002-shown" in objects_of("shown")
    client.request("DELETE", "/v1/sandboxes/shown/previews/8002", 204)
    wait_for_page(preview["host"], 404)


def test_an_application_on_loopback_is_reached(published):
    """The agent forwards it from the pod's address."""
    client = published.client()
    client.put("shown", "index.html", b"hello from the sandbox")
    preview = client.post("/v1/sandboxes/shown/previews", {"port": 8003, "command": [
        "python3", "-m", "http.server", "8003", "--bind", "127.0.0.1"]}, 201)
    assert preview["state"] == "ready"
    assert wait_for_page(preview["host"], path="/index.html").text == "hello from the sandbox"


def test_the_same_port_again_replaces_the_preview(published):
    client = published.client()
    for word in ("one", "two"):
        script = f"mkdir -p {word} && echo {word} >{word}/index.html && exec python3 -m http.server 8004 -d {word}"
        preview = client.post("/v1/sandboxes/shown/previews", {"command": ["sh", "-c", script], "port": 8004}, 201)
        assert preview["state"] == "ready" and wait_for_page(preview["host"]).text == word + "\n"
    ports = [item["port"] for item in client.get("/v1/sandboxes/shown/previews")["items"]]
    assert ports.count(8004) == 1
    assert client.exec("shown", "grep -la '[h]ttp.server.8004' /proc/[0-9]*/cmdline | wc -l")["stdout"].strip() == "1"
