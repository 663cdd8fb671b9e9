"""The installed server as a service of a real systemd, on a real kernel with control groups of version 2."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/functional"))

from server import BUILD, Client, free_port, wait_until  # noqa: E402

MACHINE = Path(__file__).parent / "machine"
BOOT = 600  # seconds: the processor is emulated
MIB = 1 << 20
HOG = ["python3", "-c", f"len(bytearray({200 * MIB}))"]
FORKS = """
import os, sys
made = 0
try:
    while made < 5000:
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        made += 1
except BlockingIOError:
    pass
print(made)
"""


class Machine:
    def __init__(self, directory):
        self.dir, self.port, self.tunnels = directory, free_port(), []
        subprocess.run([MACHINE, "make", directory, BUILD], check=True)
        self.qemu = subprocess.Popen([MACHINE, "boot", directory, str(self.port)])

    def console(self):
        console = self.dir / "console"
        return f"a machine that can be logged in to (its console: {console.read_text(errors='replace')[-2000:] if console.exists() else ''})"

    def is_up(self):
        assert self.qemu.poll() is None, self.console()
        return self.run("true", check=False).returncode == 0

    def run(self, *words, check=True):
        done = subprocess.run([MACHINE, "run", self.dir, str(self.port), *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=BOOT)
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done

    def client(self, port):
        """Of the server that listens there, once it is ready."""
        here = free_port()
        self.tunnels.append(subprocess.Popen([MACHINE, "tunnel", self.dir, str(self.port), str(here), str(port)]))
        client = Client(f"http://127.0.0.1:{here}", image="host")
        self.wait_ready(client)
        return client

    def wait_ready(self, client):
        wait_until(lambda: is_ready(client), BOOT, lambda: "the server being ready: " + self.run("journalctl", "-b", "-n", "40", "-o", "cat").stdout)

    def groups(self):
        return set(self.run("find", "/sys/fs/cgroup", "-path", "*/podsandbox-*", "-type", "d").stdout.split())

    def end(self):
        for process in (*self.tunnels, self.qemu):
            process.kill()
            process.wait()


def is_ready(client):
    try:
        return client.request("GET", "/readyz").status_code == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    machine = Machine(tmp_path_factory.mktemp("machine"))
    try:
        wait_until(machine.is_up, BOOT, machine.console)
        yield machine
    finally:
        machine.end()
        (machine.dir / "disk.img").unlink()


@pytest.fixture(scope="module")
def client(machine):
    """As the README has it."""
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "enable", "--now", "podsandboxd")
    return machine.client(8080)


@pytest.fixture(scope="module")
def sandbox(client):
    client.create("demo", ttl=7200, resources={"memory": "64Mi", "cpu": "500m"})
    return "demo"


def check_limits(client, id):
    limits = client.sandbox(id)["limits"]
    assert {name: limits[name]["enforced"] for name in limits} == dict.fromkeys(limits, True)
    said = client.exec(id, ["sh", "-c", "cd /sys/fs/cgroup; cat memory.max cpu.max pids.max"])["stdout"]
    assert said.splitlines() == [str(64 * MIB), "50000 100000", "1024"]
    result = client.exec(id, HOG)
    assert result["oom_killed"] and result["signal"] == "KILL" and result["exit_code"] is None
    assert client.sandbox(id)["state"] == "running"


def test_the_machine_is_what_it_should_be(machine):
    assert machine.run("cat", "/proc/1/comm").stdout == "systemd\n"
    assert "cgroup2" in machine.run("stat", "-f", "-c", "%T", "/sys/fs/cgroup").stdout


def test_limits_are_enforced(client, sandbox):
    check_limits(client, sandbox)


def test_processes_are_limited(client, sandbox):
    made = int(client.exec(sandbox, ["python3", "-c", FORKS], stdin_encoding="utf-8", timeout=600, timeout_s=700)["stdout"])
    assert 900 < made < 1024


def test_processor_time_is_limited(client, sandbox):
    """Of four seconds of one processor's time that is wanted, half is given."""
    result = client.exec(sandbox, ["sh", "-c", "while :; do :; done"], timeout=20)
    assert result["timed_out"] and result["cpu_time"] < 0.65 * result["duration"]


def test_a_restart_keeps_sandboxes_and_what_runs(machine, client, sandbox):
    client.put(sandbox, "file", b"kept")
    running = client.post(f"/v1/sandboxes/{sandbox}/execs", {"cmd": ["sh", "-c", "until [ -e go ]; do sleep 0.2; done; echo went on"],
                                                             "detach": True}, 202)["id"]
    before = machine.run("systemctl", "show", "-P", "MainPID", "podsandboxd").stdout
    machine.run("systemctl", "restart", "podsandboxd")
    assert machine.run("systemctl", "show", "-P", "MainPID", "podsandboxd").stdout != before
    machine.wait_ready(client)
    client.wait_state(sandbox, "running")
    client.put(sandbox, "go", b"")
    assert client.exec_wait(sandbox, running)["stdout"] == "went on\n"
    assert client.read(sandbox, "file") == b"kept"
    check_limits(client, sandbox)


def test_limits_hold_while_no_server_runs(machine, client, sandbox):
    machine.run("systemctl", "stop", "podsandboxd")
    machine.run("systemctl", "daemon-reload")
    group = next(path for path in machine.groups() if path.endswith("/demo"))
    assert machine.run("cat", f"{group}/cpu.max", f"{group}/memory.max").stdout.split() == ["50000", "100000", str(64 * MIB)]
    machine.run("systemctl", "start", "podsandboxd")
    machine.wait_ready(client)
    check_limits(client, sandbox)


def test_a_killed_server_is_started_again(machine, client, sandbox):
    before = machine.run("systemctl", "show", "-P", "MainPID", "podsandboxd").stdout
    machine.run("systemctl", "kill", "-s", "KILL", "--kill-who=main", "podsandboxd")
    wait_until(lambda: machine.run("systemctl", "show", "-P", "MainPID", "podsandboxd").stdout not in (before, "0\n"), BOOT, "a new server")
    machine.wait_ready(client)
    assert client.read(sandbox, "file") == b"kept"


def test_nothing_is_left_of_a_deleted_one(machine, client):
    client.create("short")
    assert any(path.endswith("/short") for path in machine.groups())
    client.delete("short")
    assert not any(path.endswith("/short") for path in machine.groups())


def test_a_user_has_limits_in_a_scope_of_his_own(machine):
    """systemd-run --user --scope, as the README's Limits say; what his systemd is not given is said to be missing."""
    machine.run("useradd", "--create-home", "--uid", "1234", "user")
    machine.run("loginctl", "enable-linger", "user")
    machine.run("systemd-run", "--uid=user", "--setenv=XDG_RUNTIME_DIR=/run/user/1234", "--setenv=HOME=/home/user", "--unit=as-user",
                "systemd-run", "--user", "--scope", "/usr/local/bin/podsandboxd", "--driver", "local", "--listen", "127.0.0.1:8081",
                "--store", "/home/user/podsandboxd.db")
    client = machine.client(8081)
    client.create("mine", resources={"memory": "64Mi"})
    limits = client.sandbox("mine")["limits"]
    assert limits["memory"]["enforced"] and limits["pids"]["enforced"]
    result = client.exec("mine", HOG)
    assert result["oom_killed"] and result["signal"] == "KILL"
    client.delete("mine")


def test_a_reboot_ends_sandboxes_and_says_so(machine, client, sandbox):
    boot = machine.run("cat", "/proc/sys/kernel/random/boot_id").stdout
    machine.run("systemctl", "reboot", check=False)
    wait_until(lambda: machine.run("cat", "/proc/sys/kernel/random/boot_id", check=False).stdout not in ("", boot), BOOT, machine.console)
    again = machine.client(8080)  # by itself: it is enabled
    record = again.wait_state(sandbox, "failed", 120)
    assert record["reason"] == "container_exited" and record["message"]
    assert not any(path.endswith(f"/{sandbox}") for path in machine.groups())
    again.create(sandbox)
    assert again.exec(sandbox, ["cat", "file"])["exit_code"] == 1
    again.delete(sandbox)
