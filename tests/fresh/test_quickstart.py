"""deploy/quickstart on a Debian 12 that has nothing installed, as root and as a user; and again, and with what is in its way."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/functional"))

from server import Client, free_port, wait_until  # noqa: E402

DEBIAN = Path(__file__).parent / "debian"
TOUR = "quickstart-tour"


class Debian:
    def __init__(self, directory):
        self.dir = directory
        subprocess.run([DEBIAN, "make", directory], check=True)
        files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        existing = b"\0".join(name for name in files.split(b"\0") if name and os.path.lexists(os.path.join(os.fsencode(ROOT), name)))
        (directory / "src").mkdir()
        packed = subprocess.run(["tar", "-c", "--null", "-T", "-"], cwd=ROOT, input=existing, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", directory / "src", "--no-same-owner"], input=packed, check=True)
        self.keeper = subprocess.Popen([DEBIAN, "boot", directory])
        self.pid = wait_until(self.find_inner, what="the fresh Debian")

    def find_inner(self):
        """Its first process, once that has become `sleep`."""
        children = Path(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children").read_text().split()
        return children[0] if children and Path(f"/proc/{children[0]}/comm").read_text() == "sleep\n" else None

    def run(self, *command, user=None, **options):
        command = ["nsenter", "--target", self.pid, "--mount", "--pid", "--", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                   f"HOME=/{'home/' + user if user else 'root'}", *(["setpriv", "--reuid", user, "--regid", user, "--init-groups"] if user else []),
                   *map(str, command)]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, **options)

    def quickstart(self, *options, expect=0, **more):
        done = self.run("/src/deploy/quickstart", *options, **more)
        assert done.returncode == expect, f"{done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def server(self, state="var/lib/podsandbox"):
        return (self.dir / state / "server.pid").read_text().strip()

    def end(self):
        self.keeper.kill()
        self.keeper.wait()


@pytest.fixture(scope="module")
def debian(tmp_path_factory):
    directory = tmp_path_factory.mktemp("debian")
    for path in (directory, *list(directory.parents)[:2]):
        path.chmod(0o755)
    debian = Debian(directory)
    yield debian
    debian.end()
    subprocess.run(["rm", "-rf", "--one-file-system", directory], check=True)


@pytest.fixture(scope="module")
def port():
    return free_port()


@pytest.fixture(scope="module")
def first(debian, port):
    """What the first run says."""
    return debian.quickstart("--port", port)


def page(port):
    return Client(f"http://127.0.0.1:{port}").request("GET", "/", headers={"Host": f"{TOUR}.localhost:{port}"})


def test_the_first_run_ends_with_a_preview(first, port):
    assert '"stdout":"42\\n"' in first and "<h1>Hello from a sandbox</h1>" in first
    assert f"Open it: http://{TOUR}.localhost:{port}/" in first
    answer = page(port)
    assert answer.status_code == 200 and "<h1>Hello from a sandbox</h1>" in answer.text


def test_what_the_tour_prints_can_be_typed(debian, first):
    commands = re.findall(r"^\$ (curl .*)$", first, re.M)
    assert len(commands) == 5
    again = debian.run("sh", "-c", commands[1])
    assert '"stdout":"42\\n"' in again.stdout, again


def test_another_run_does_no_harm(debian, first, port):
    client = Client(f"http://127.0.0.1:{port}", image="host")
    client.create("mine", ttl=3600)
    client.put("mine", "file", b"kept")
    before = debian.server()
    said = debian.quickstart()
    assert "is up to date" in said and "building" not in said and "installing" not in said
    assert debian.server() == before
    assert client.read("mine", "file") == b"kept" and page(port).status_code == 200


def test_a_newer_build_restarts_it(debian, first, port):
    client = Client(f"http://127.0.0.1:{port}", image="host")
    before = debian.server()
    with open(debian.dir / "src/build/quickstart/server/podsandboxd", "ab") as program:
        program.write(b"newer")
    said = debian.quickstart("--no-tour")
    assert "restarting" in said and debian.server() != before
    assert client.wait_state("mine", "running") and client.read("mine", "file") == b"kept"
    assert client.exec("mine", ["cat", "file"])["stdout"] == "kept"


def test_stop_and_start(debian, first, port):
    assert "stopped" in debian.quickstart("--stop")
    assert "no server runs" in debian.quickstart("--stop")
    debian.quickstart("--no-tour")  # on the port it had
    client = Client(f"http://127.0.0.1:{port}", image="host")
    client.wait_state("mine", "running")
    assert client.read("mine", "file") == b"kept"
    client.delete("mine")


def test_a_port_that_is_taken(debian, first, port):
    """A server that runs elsewhere goes on."""
    client = Client(f"http://127.0.0.1:{port}", image="host")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        before = debian.server()
        said = debian.quickstart("--no-tour", "--port", taken, expect=1)
        assert f"port {taken} is taken" in said and "--port N" in said and "restarting" not in said
        assert debian.server() == before and client.request("GET", "/readyz").status_code == 200
        debian.quickstart("--stop")
        assert f"port {taken} is taken" in debian.quickstart("--no-tour", "--port", taken, expect=1)
    debian.quickstart("--no-tour")  # on the port it had


def test_one_that_was_killed_while_the_server_started(debian, first, port):
    """The next one finds that server, and its port."""
    debian.quickstart("--stop")
    (debian.dir / "var/lib/podsandbox/port").unlink()
    (debian.dir / "deadly").mkdir()
    deadly = debian.dir / "deadly/curl"
    deadly.write_text("#!/bin/sh\nkill -KILL $PPID\n")
    deadly.chmod(0o755)
    killed = debian.run("env", "PATH=/deadly:/usr/sbin:/usr/bin:/sbin:/bin", "/src/deploy/quickstart", "--no-tour", "--port", port)
    assert killed.returncode != 0 and "quickstart: the server" not in killed.stderr, killed
    assert f"http://127.0.0.1:{port}/v1" in debian.quickstart("--no-tour")
    assert Client(f"http://127.0.0.1:{port}").request("GET", "/readyz").status_code == 200


def test_packages_that_cannot_be_had(debian, first):
    sources = debian.dir / "etc/apt/sources.list.d"
    hidden = sources.rename(sources.with_name("hidden"))
    lists = (debian.dir / "etc/apt/sources.list")
    kept = lists.rename(lists.with_name("hidden.list")) if lists.exists() else None
    try:
        sources.mkdir()
        lists.write_text("deb [trusted=yes] http://127.0.0.1:1/debian bookworm main\n")
        assert debian.run("apt-get", "remove", "-y", "bubblewrap").returncode == 0
        said = debian.quickstart("--no-tour", expect=1)
        assert "apt could not install packages" in said and "127.0.0.1" in said
    finally:
        lists.unlink()
        sources.rmdir()
        hidden.rename(sources)
        if kept:
            kept.rename(lists)
    debian.quickstart("--no-tour")


def test_a_user(debian, first):
    """Nothing is left to install, so no sudo is needed; and the build is that user's own."""
    debian.quickstart("--stop")
    assert debian.run("useradd", "--create-home", "somebody").returncode == 0
    assert debian.run("chown", "-R", "somebody", "/src").returncode == 0
    port = free_port()
    said = debian.quickstart("--port", port, user="somebody")
    assert "<h1>Hello from a sandbox</h1>" in said and page(port).status_code == 200
    assert (debian.dir / "home/somebody/.local/state/podsandbox/server.log").exists()
    debian.quickstart("--stop", user="somebody")


def test_where_user_namespaces_are_forbidden(debian, first):
    """A chroot is such a place."""
    done = subprocess.run(["nsenter", "--target", debian.pid, "--mount", "--pid", "--", "sh", "-c",
                           "mkdir -p /in && mount --rbind / /in && chroot /in /src/deploy/quickstart --no-tour"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "the server does not start" in said and "namespace" in said, said
