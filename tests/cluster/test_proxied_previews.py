"""Previews that the server itself serves, behind one Ingress with a wildcard host."""

import socket
from pathlib import Path

import pytest
from websockets.sync.client import connect

from cluster import INGRESS, NAMESPACE, apply, kubectl, objects_of, through_ingress, wait_for_page

DOMAIN = "previews.test"
NODE = "10.96.255.1"
NAME = "podsandbox-previews"
APP = (Path(__file__).parents[1] / "functional/proxy_app.py").read_bytes()


def serve_all(port):
    """One Ingress for all previews there will be."""
    name = {"name": NAME, "namespace": NAMESPACE}
    backend = {"service": {"name": NAME, "port": {"number": 80}}}
    apply({"apiVersion": "v1", "kind": "Service", "metadata": name, "spec": {"ports": [{"port": 80, "targetPort": port}]}},
          {"apiVersion": "v1", "kind": "Endpoints", "metadata": name, "subsets": [{"addresses": [{"ip": NODE}], "ports": [{"port": port}]}]},
          {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": name, "spec": {
              "ingressClassName": "nginx", "rules": [{"host": f"*.{DOMAIN}", "http": {"paths": [
                  {"path": "/", "pathType": "Prefix", "backend": backend}]}}]}})


@pytest.mark.own_cluster
@pytest.mark.parametrize("spec", [{"image": "localhost/python:1"}, {"image": "localhost/python:1", "runtime_class": "gvisor"}],
                         ids=["runc", "gvisor"])
def test_behind_one_wildcard_host(fresh, spec):
    server = fresh("--preview-mode", "proxy", "--preview-domain", DOMAIN, "--preview-port", "80", keys={"key-of-anna": ("anna", "user")})
    server.options += ["--listen", f"0.0.0.0:{server.port}"]
    server.start()
    client = server.client("key-of-anna")
    serve_all(server.port)
    try:
        client.create("site", **spec)
        client.put("site", "app.py", APP)
        made = client.post("/v1/sandboxes/site/previews", {"port": 8000, "command": ["python3", "app.py", "8000"]}, 201)
        assert made["url"] == f"http://site.{DOMAIN}/" and made["state"] == "ready"
        assert [name for name in objects_of("site") if not name.startswith("Pod/")] == []
        wait_for_page(f"site.{DOMAIN}", path="/echo")
        said = through_ingress(f"site.{DOMAIN}", "/echo?a=%2F").json()
        fields = {name.lower(): value for name, value in said["headers"]}
        assert said["target"] == "/echo?a=%2F" and fields["host"] == f"site.{DOMAIN}"
        assert len(through_ingress(f"site.{DOMAIN}", "/large?size=20000000&as=chunks").content) == 20000000
        assert through_ingress(f"nobody.{DOMAIN}").status_code == 404
        host, _, port = INGRESS.partition(":")
        sock = socket.create_connection((host, int(port or 80)), timeout=20)
        with connect(f"ws://site.{DOMAIN}/ws", sock=sock, compression=None) as websocket:
            websocket.recv()
            websocket.send("through it all")
            assert websocket.recv() == "through it all"
        client.delete("site")
        assert through_ingress(f"site.{DOMAIN}").status_code == 410
    finally:
        kubectl("delete", "ingress,endpoints,service", NAME, "-n", NAMESPACE, "--ignore-not-found")
