"""What only a real engine shows: that the container is as hardened as it is meant to be, that nothing is left, and that both
outlive each other."""

import json
import os

import pytest

import engine as engines
from docker_server import DockerServer
from server import at_once, wait_until


def run(client, id, script):
    result = client.exec(id, script)
    assert result["exit_code"] == 0, result
    return result["stdout"]


def test_a_container_is_hardened(client, engine, box):
    """As the engine has it, and as it is from inside."""
    said = engine.container(box)
    host = said["HostConfig"]
    assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and not host["Privileged"] and not host["Binds"]
    assert host["SecurityOpt"] == ["no-new-privileges"] and host["PidsLimit"] == 512 and host["Memory"] == host["MemorySwap"] == 2 << 30
    assert host["NanoCpus"] == 2 * 10**9 and said["Config"]["User"] == "1000:1000"
    status = dict(line.split(":", 1) for line in run(client, box, "cat /proc/self/status").splitlines())
    assert {status[name].strip() for name in status if name.startswith("Cap")} == {"0" * 16}
    assert status["NoNewPrivs"].strip() == "1" and status["Seccomp"].strip() == "2" and status["Uid"].split() == ["1000"] * 4
    for place in ("/", "/usr", "/etc", "/opt/podsandbox", "/root", "/home"):
        assert client.exec(box, ["touch", f"{place}/x"])["exit_code"] != 0, place
    for place in ("/workspace", "/tmp", "/home/sandbox"):
        assert client.exec(box, ["touch", f"{place}/x"])["exit_code"] == 0, place
    assert client.exec(box, ["ls", "/proc/1/fd"])["exit_code"] != 0
    assert not os.path.exists("/var/run/docker.sock") or client.exec(box, ["ls", "/var/run/docker.sock"])["exit_code"] != 0


def test_nothing_secret_in_the_container(client, engine):
    id = client.create(env={"TOKEN": "s3cr3t-t0ken"}, secrets=["s3cr3t-t0ken"])["id"]
    assert run(client, id, "printenv TOKEN") == "***\n"
    assert "s3cr3t-t0ken" not in json.dumps(engine.container(id))
    client.delete(id)


def test_nothing_is_left(client, engine):
    """Of a sandbox that ended, of one that failed: no container, no volume."""
    before = {volume["Name"] for volume in engine.get("/v1.41/volumes")["Volumes"] or []}
    ids = [client.create()["id"] for _ in range(2)]
    client.create_problem((422, 502), None, id="not-to-be", image="localhost/does-not-exist:1")
    client.create_problem((422, 502), None, id="too-small", resources={"memory": "1Mi", "memory_request": "1Mi"})
    for id in (*ids, "not-to-be", "too-small"):
        client.delete(id)
        engine.request("GET", f"/v1.41/containers/sandbox-{id}/json", (404,))
    assert {volume["Name"] for volume in engine.get("/v1.41/volumes")["Volumes"] or []} == before


def test_b37_orphans_are_reaped(client, box):
    """600 processes that nobody waits for, three times; no zombies, and room for more."""
    script = "i=0; while [ $i -lt 600 ]; do (sh -c 'sleep 0.01 &'); i=$((i+1)); done; sleep 1"
    count = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"
    for _ in range(3):
        assert client.exec(box, script)["exit_code"] == 0
        assert int(run(client, box, count)) <= 5
    assert client.exec(box, ["true"])["exit_code"] == 0


def test_the_limits_hold(client):
    id = client.create(resources={"memory": "64Mi", "memory_request": "64Mi", "cpu": 0.5, "storage": "16Mi"})["id"]
    limits = client.sandbox(id)["limits"]
    assert limits["memory"] == {"value": 64 << 20, "enforced": True} and limits["pids"] == {"value": 512, "enforced": True}
    assert limits["cpu"] == {"value": 0.5, "enforced": True} and limits["storage"] == {"value": 16 << 20, "enforced": True}
    eaten = client.exec(id, ["python3", "-c", "x = bytearray(200 << 20)"])
    assert eaten["exit_code"] == 137 or eaten["signal"] == "KILL" or "MemoryError" in eaten["stderr"], eaten
    assert client.exec(id, ["true"])["exit_code"] == 0
    full = client.exec(id, "head -c 100000000 /dev/zero >big")
    assert full["exit_code"] != 0 and "space" in full["stderr"]
    client.delete(id)


def test_networks(client):
    """`internet` has an interface and no way to another sandbox; `none` has nothing."""
    names = "import os; print(*sorted(os.listdir('/sys/class/net')))"
    alone = client.create(network="none")["id"]
    assert run(client, alone, ["python3", "-c", names]).split() == ["lo"]
    client.delete(alone)
    one, two = client.create()["id"], client.create()["id"]
    assert "eth0" in run(client, one, ["python3", "-c", names])
    client.start(two, ["python3", "-m", "http.server", "8000", "--bind", "0.0.0.0"])
    address = run(client, two, ["python3", "-c", "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
                                                 "s.connect(('10.201.255.254', 1)); print(s.getsockname()[0])"]).strip()
    reach = "import socket, sys; socket.create_connection((sys.argv[1], 8000), timeout=1)"
    wait_until(lambda: client.exec(two, ["python3", "-c", reach, address])["exit_code"] == 0, what="the server in the sandbox")
    assert client.exec(one, ["python3", "-c", reach, address])["exit_code"] != 0
    client.delete(one)
    client.delete(two)


def test_the_compat_profile(client):
    """As root of the image where that is its user, with what the image has in its workdir, and a root that can be written to."""
    id = client.create(profile="compat", image="localhost/distroless:1", workdir="/srv")["id"]
    assert client.exec(id, ["/say", "0"])["exit_code"] == 0
    client.delete(id)
    id = client.create(profile="compat")["id"]
    client.problem("GET", f"/v1/sandboxes/{id}/changes?since=create", 422, "not_supported")  # it is the image's directory
    said = run(client, id, "id -u; pwd; echo $HOME; grep -E 'NoNewPrivs|Seccomp:' /proc/self/status; touch /workspace/x || true; echo 1 >/tmp/y; cat /tmp/y")
    assert said.splitlines()[:5] == ["1000", "/workspace", "/home/sandbox", "NoNewPrivs:\t1", "Seccomp:\t2"] and said.endswith("1\n"), said
    record = client.sandbox(id)
    assert record["run_as_user"] is None and record["limits"]["storage"]["enforced"] is False
    client.put(id, "/home/sandbox/f", b"x")
    assert client.read(id, "/home/sandbox/f") == b"x"
    client.delete(id)


def test_a_signal_to_the_container(client, engine):
    """From the outside, as `docker kill` and `docker stop` do."""
    for path, reason in (("kill", "container_exited"), ("stop?t=1", "container_exited")):
        id = client.create()["id"]
        engine.request("POST", f"/v1.41/containers/sandbox-{id}/{path}")
        assert client.wait_state(id, "failed")["reason"] == reason
        client.delete(id)


def test_a_foreign_container_is_not_touched(client, engine):
    made = engine.request("POST", "/v1.41/containers/create?name=sandbox-foreign", json={"Image": "localhost/busybox:1"}).json()
    try:
        client.create_problem(409, "already_exists", id="foreign")
        client.request("DELETE", "/v1/sandboxes/foreign")
        client.post("/v1/admin/reap", {})
        assert engine.get(f"/v1.41/containers/{made['Id']}/json")["Id"] == made["Id"]
    finally:
        engine.remove(made["Id"])


def test_an_image_without_anything(client):
    """No shell, no libc: the agent brings all that it needs."""
    id = client.create(image="localhost/distroless:1")["id"]
    result = client.exec(id, ["/say", "a b", "7"])
    assert (result["stdout"], result["exit_code"]) == ("a b 7\n", 7)
    client.put(id, "f", b"x")
    assert client.read(id, "f") == b"x"
    client.delete(id)


def test_a_command_outlives_the_server(fresh):
    server = fresh().start()
    id = server.client().create()["id"]
    started = server.client().start(id, "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo ended")
    wait_until(lambda: server.client().output(id, started["id"]).text == "begun\n", what="the command's first output")
    server.kill()
    server.start()
    server.client().put(id, "go", b"")
    record = server.client().exec_wait(id, started["id"])
    assert record["exit_code"] == 0 and server.client().output(id, started["id"]).text == "begun\nended\n", record
    server.client().delete(id)


def test_many_at_once(client):
    ids = [record["id"] for record in at_once(6, client.create)]
    assert len(set(ids)) == 6
    at_once(1, lambda: [client.delete(id) for id in ids])


@pytest.mark.skipif("PODSANDBOX_DOCKER_HOST" in os.environ, reason="an engine that is not ours is not stopped")
def test_the_engine_stops_and_starts(tmp_path):
    """Its containers end with it, and what is asked of it meanwhile is worth another try."""
    with engines.TemporaryEngine() as own:
        server = DockerServer(own.url, tmp_path / "server", ("--reap-every", "1")).start()
        client = server.client()
        client.create("before")
        own.stop()
        problem = client.create_problem(503, "backend_unavailable", id="meanwhile")
        assert problem["retryable"], problem
        own.start()
        wait_until(lambda: client.request("POST", "/v1/sandboxes", json={"id": "after", "image": client.image}).status_code == 201,
                   60, "the engine being found again")
        assert client.wait_state("before", "failed")["reason"] == "container_exited"
        for id in ("before", "after"):
            client.delete(id, (202, 204))
        server.stop()
        assert server.boxes() == []
