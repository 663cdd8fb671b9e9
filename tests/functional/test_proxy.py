"""Previews that the server itself serves."""

import requests

from server import wait_until

OPTIONS = ("--preview-mode", "proxy", "--preview-domain", "localhost", "--reap-every", "1")
PORT_SERVER = ["python3", "-m", "http.server", "8000"]

import pytest


@pytest.fixture
def box(client):
    client.create("web")
    yield "web"
    client.delete("web", expect=(202, 204))


def preview(client, box, expect=201, **body):
    body.setdefault("port", 8000)
    return client.request("POST", f"/v1/sandboxes/{box}/previews", expect, json=body).json()


def test_a_preview(server, client, box):
    made = preview(client, box, command=PORT_SERVER)
    assert made["url"] == f"http://web.localhost:{server.port}/" and made["state"] == "ready"
    assert made["service"] is None and made["ingress"] is None
    client.put(box, "hello.txt", b"hello there")
    response = requests.get(f"http://127.0.0.1:{server.port}/hello.txt", headers={"Host": f"web.localhost:{server.port}"}, timeout=10)
    assert response.status_code == 200 and response.content == b"hello there", (response.status_code, response.text, response.headers)
    print(response.headers)
