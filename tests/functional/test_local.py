"""The local driver: sandboxes as processes of this machine."""

import errno
import os
import signal

import pytest

from local_server import LocalServer
from server import wait_until


BOMB = """
import os, signal
made = 0
try:
    while made < 500:
        if not os.fork():
            signal.pause()
        made += 1
except OSError as error:
    print(made, error.errno, flush=True)
os.killpg(0, signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    server = LocalServer(None, tmp_path_factory.mktemp("local"), ["--local-pids", "64"]).start()
    yield server
    server.stop()
    server.end_boxes()


@pytest.fixture
def server(cloud):
    yield cloud
    if cloud.process.poll() is not None:
        cloud.start()


def test_a_box_leaves_nothing_behind(server, client):
    uid = client.create("leaves-nothing")["uid"]
    assert "leaves-nothing" in server.boxes() and len(server.processes([uid])) >= 2
    pid = server.agent_pid("leaves-nothing")
    assert client.exec("leaves-nothing", ["true"])["exit_code"] == 0
    client.delete("leaves-nothing")
    assert not os.path.exists(f"/proc/{pid}") and server.cgroups() == []
    assert "leaves-nothing" not in server.boxes() and server.processes([uid]) == []


def test_what_is_inside(client, sandbox):
    result = client.exec(sandbox, "id -u; id -g; id -un; pwd; cat /proc/sys/kernel/hostname; grep -c . /proc/net/dev; echo $HOME")
    assert result["stdout"].split() == ["1000", "1000", "sandbox", "/workspace", sandbox, "3", "/home/sandbox"]
    status = client.exec(sandbox, "grep -E '^(Cap|NoNewPrivs|Seccomp)' /proc/self/status")["stdout"]
    fields = dict(line.split(":\t") for line in status.splitlines())
    assert all(int(value, 16) == 0 for name, value in fields.items() if name.startswith("Cap")), fields
    assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2" and fields["Seccomp_filters"] == "2"


def test_only_private_places_are_writable(client, sandbox):
    for path in ("/workspace", "/tmp", "/home/sandbox", "/dev/shm"):
        assert client.exec(sandbox, f"echo x > {path}/file && cat {path}/file")["stdout"] == "x\n", path
    for path in ("/", "/usr", "/etc", "/dev", "/run", "/var", "/opt/podsandbox", "/proc/sys/kernel"):
        result = client.exec(sandbox, f"echo x > {path}/file")
        assert result["exit_code"] != 0 and "file" in result["stderr"], (path, result)
    client.delete(sandbox)
    client.create(sandbox)
    assert client.exec(sandbox, "ls -A /workspace /tmp /home/sandbox /dev/shm | grep file")["stdout"] == ""


def test_each_place_has_its_own_limit(client):
    record = client.create(resources={"storage": "1Mi"}, writable_mounts={"more": "/data/more"})
    for path in ("/workspace", "/tmp", "/home/sandbox", "/data/more", "/dev/shm"):
        result = client.exec(record["id"], f"head -c 900000 /dev/zero > {path}/a; head -c 900000 /dev/zero > {path}/b")
        assert "No space left" in result["stderr"], (path, result)
    client.delete(record["id"])


def test_a_full_place_does_not_end_the_sandbox(client):
    """Neither by a command nor by a file that is put, however much storage was asked for."""
    record = client.create(resources={"memory": "64Mi", "memory_request": "32Mi", "storage": "4Gi"})
    id = record["id"]
    client.problem("PUT", client.file_url(id, "put"), 507, "no_space", data=bytes(40 << 20))
    result = client.exec(id, "head -c 200000000 /dev/zero > written")
    assert "No space left" in result["stderr"] and not result["oom_killed"]
    assert client.exec(id, "rm written && echo on")["stdout"] == "on\n"
    client.delete(id)


def test_limits_hold(server, client):
    """As far as this machine lets us: `limits` says which."""
    limits = client.create("limited", resources={"cpu": "500m", "memory": "64Mi", "memory_request": "32Mi"})["limits"]
    assert limits["storage"] == {"value": 32 << 20, "enforced": True}  # what is written is memory
    assert limits["pids"] == {"value": 64, "enforced": True}
    result = client.exec("limited", ["python3", "-c", BOMB])
    made, error = result["stdout"].split()
    assert int(made) <= 64 and int(error) == errno.EAGAIN and client.exec("limited", ["true"])["exit_code"] == 0
    if limits["memory"]["enforced"]:
        assert limits["memory"]["value"] == 64 << 20
        result = client.exec("limited", ["python3", "-c", "bytearray(200 << 20)"])
        assert (result["signal"], result["oom_killed"]) == ("KILL", True)
        assert client.sandbox("limited")["state"] == "running"
    if limits["cpu"]["enforced"]:
        assert limits["cpu"]["value"] == 0.5
    told = client.exec("limited", 'echo $GOMAXPROCS $MAKEFLAGS')["stdout"].split()
    assert told == (["1", "-j1"] if limits["cpu"]["enforced"] else [])
    client.delete("limited")


@pytest.mark.parametrize("cpu, count", [("1001m", "2"), ("1", "1")])
def test_a_part_of_a_processor_counts_as_one(client, cpu, count):
    record = client.create(resources={"cpu": cpu})
    told = client.exec(record["id"], ["sh", "-c", "echo $OMP_NUM_THREADS"])["stdout"].strip()
    assert told == (count if record["limits"]["cpu"]["enforced"] else "")
    client.delete(record["id"])


def test_less_of_a_cpu_than_the_kernel_can_give(server, client):
    for cpu in ("1m", "1u"):
        client.create("slow", resources={"cpu": cpu})
        assert client.exec("slow", ["true"])["exit_code"] == 0
        client.delete("slow")


def test_the_kernel_took_the_agent_for_memory(server, client):
    if not client.create("starved", resources={"memory": "64Mi", "memory_request": "32Mi"})["limits"]["memory"]["enforced"]:
        pytest.skip("no limit of memory on this machine")
    assert client.exec("starved", ["python3", "-c", "bytearray(200 << 20)"])["oom_killed"]
    os.kill(server.agent_pid("starved"), signal.SIGKILL)
    assert client.wait_state("starved", "failed")["reason"] == "oom_killed"
    client.delete("starved")


def test_what_it_cannot_do_is_refused(client):
    client.create_problem(422, image="debian:12")
    client.create_problem(422, "not_supported", network="internet")
    client.create_problem(422, "not_supported", runtime_class="gvisor")


def test_a_command_survives_the_server(server, client):
    client.create("survives")
    client.exec("survives", "mkfifo /tmp/fifo")
    number = client.start("survives", "echo up; read go < /tmp/fifo; echo $go; exit 7")["id"]
    wait_until(lambda: client.get(f"/v1/sandboxes/survives/execs/{number}")["stdout"] == "up\n", what="the agent having it")
    pid = server.agent_pid("survives")
    server.kill()
    os.kill(pid, 0)
    server.start()
    assert server.agent_pid("survives") == pid
    assert client.exec("survives", "echo went > /tmp/fifo")["exit_code"] == 0
    record = client.exec_wait("survives", number)
    assert (record["exit_code"], client.output("survives", number).content) == (7, b"up\nwent\n")
    client.delete("survives")


def test_a_lost_store_loses_nothing(server, client):
    before = client.create("unknown", labels={"a": "b"}, ttl=1234)
    client.exec("unknown", "echo kept > file")
    server.kill()
    server.forget()
    server.start()
    after = client.wait_state("unknown", "running")
    assert (after["uid"], after["labels"]) == (before["uid"], {"a": "b"})
    assert client.read("unknown", "file") == b"kept\n"
    client.delete("unknown")


def test_killed_from_outside(server, client):
    client.create("killed")
    os.kill(server.agent_pid("killed"), signal.SIGKILL)
    record = client.wait_state("killed", "failed")
    assert (record["reason"], record["message"]) == ("container_exited", "its agent was killed")
    server.wait_gone("killed")
    client.delete("killed")


def test_told_to_end_from_outside(server, client):
    client.create("told")
    os.kill(server.agent_pid("told"), signal.SIGTERM)
    assert client.wait_state("told", "gone")["reason"] == "removed_externally"
    server.wait_gone("told")


def test_the_box_is_there_when_its_bwrap_is_not(server, client):
    client.create("alone")
    os.kill(server.record("alone")["bwrap"]["pid"], signal.SIGKILL)
    assert client.exec("alone", ["true"])["exit_code"] == 0
    client.delete("alone")
    assert "alone" not in server.boxes()


def test_ended_while_no_server_was_there(server, client):
    client.create("meanwhile")
    client.create("expired", ttl=2)
    pids = server.agent_pid("meanwhile"), server.agent_pid("expired")
    server.kill()
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), what="the boxes' ends")
    server.start()
    assert client.wait_state("meanwhile", "failed")["reason"] == "container_exited"
    assert client.wait_state("expired", "gone")["reason"] == "ttl"
    client.delete("meanwhile")
    server.wait_gone("meanwhile")
