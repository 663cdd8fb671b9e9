"""Shell sessions in real images, and in gVisor."""

import pytest

IMAGES = {"busybox": {"image": "localhost/busybox:1"}, "python": {"image": "localhost/python:1"},
          "gvisor": {"image": "localhost/python:1", "runtime_class": "gvisor"}}


@pytest.mark.parametrize("name", IMAGES)
def test_a_session_keeps_its_shell(cloud, name):
    client = cloud.client()
    box = client.request("POST", "/v1/sandboxes", 201, json=IMAGES[name]).json()["id"]
    at = f"/v1/sandboxes/{box}/sessions"
    session = client.post(at, {"shell": "sh"}, expect=201)["id"]

    def run(command, **body):
        return client.post(f"{at}/{session}/runs", {"command": command, **body})

    first = run("cd /tmp; kept=5; (sleep 0.2; true) & echo hi")
    assert (first["stdout"], first["exit_code"], first["cwd"]) == ("hi\n", 0, "/tmp")
    assert run("cat; fi")["exit_code"] == 2
    late = run("sleep 300; echo not reached", timeout=0.4)
    assert (late["timed_out"], late["session_ended"], late["stdout"]) == (True, False, "")
    last = run("pwd; echo $kept; exit 3")
    assert (last["stdout"], last["exit_code"], last["session_ended"]) == ("/tmp\n5\n", 3, True)
    client.problem("POST", f"{at}/{session}/runs", 409, "session_ended", json={"command": "true"})
    client.request("DELETE", f"/v1/sandboxes/{box}", (202, 204))


def test_an_image_without_a_shell(cloud):
    client = cloud.client()
    box = client.request("POST", "/v1/sandboxes", 201, json={"image": "localhost/distroless:1"}).json()["id"]
    client.problem("POST", f"/v1/sandboxes/{box}/sessions", 422, "shell_not_found", json={})
    client.request("DELETE", f"/v1/sandboxes/{box}", (202, 204))
