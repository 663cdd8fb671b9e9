"""Each test gets an agent of its own: PID 1 of a new PID (and mount and network) namespace."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))
import frames  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


def agent_binary():
    build = Path(os.environ.get("PODSANDBOX_BUILD") or ROOT / "build/release").resolve()
    path = Path(os.environ.get("PODSANDBOX_AGENT") or build / "agent/podsandbox-agent")
    if not os.access(path, os.X_OK):
        pytest.exit(f"{path} is missing: build first, or set PODSANDBOX_BUILD", returncode=1)
    return str(path)


BINARY = agent_binary()


def wait_for(condition, what, seconds=20):
    """Polls what has no event to wait for."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.005)


def children_of(pid):
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Agent:
    """`unshare` with the agent below it; the pids are the host's."""

    def __init__(self, tmp_path, *args, abstract=False, user=None, env=None, cwd=None, cgroup=None, files=None):
        self.directory = tmp_path
        self.user = user
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net"]
        if cgroup is not None:  # what the sandbox sees as its cgroup
            command += ["sh", "-c", 'mount --bind "$0" /sys/fs/cgroup && exec "$@"', str(cgroup)]
        if files is not None:
            command += ["prlimit", f"--nofile={files}:{files}"]
        if user is not None:
            command += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        command += [BINARY, "serve", *args]
        self.path = None
        listener = None
        if not abstract:
            self.path = tmp_path / "agent.sock"
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(self.path))
            listener.listen(16)
            command += ["--listen-fd", str(listener.fileno())]
        self.process = subprocess.Popen(
            command,
            pass_fds=[listener.fileno()] if listener else [],
            stderr=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "HOME": "/nowhere", "FROM": "image"} if env is None else env,
            cwd=cwd or tmp_path,
        )
        if listener:
            listener.close()
        self.pid = wait_for(lambda: children_of(self.process.pid), "agent")[0]
        self.clients = []

    def client(self, **kwargs):
        client = frames.Client.connect(self.path, **kwargs)
        self.clients.append(client)
        return client

    def hello(self, **kwargs):
        client = self.client()
        client.hello(**kwargs)
        return client

    def attach(self):
        """`attach` as a process that enters from outside, like `kubectl exec`. Returns the Popen."""
        wait_for(lambda: "@podsandbox-agent" in Path(f"/proc/{self.pid}/net/unix").read_text(), "listening agent")
        command = ["nsenter", "-t", str(self.pid), "-p", "-n", "-m", BINARY, "attach"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def processes(self):
        """Host pids of everything in the agent's PID namespace."""
        space = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == space:
                    found.append(int(entry))
            except OSError:
                pass
        return found

    def commands(self):
        """The command lines in the namespace that are not the agent's own."""
        found = []
        for pid in self.processes():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if line and b"podsandbox-agent" not in line:
                found.append(line.replace(b"\0", b" ").decode().strip())
        return found

    def wait_end(self, seconds=20):
        return self.process.wait(seconds)

    def stop(self):
        for client in self.clients:
            try:
                client.close()
            except OSError:
                pass
        if self.process.poll() is None:
            # PID 1 itself: the kernel forgets unshare's --kill-child where the user changes.
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stderr.close()


@pytest.fixture
def agents(tmp_path):
    started = []

    def start(*args, **kwargs):
        agent = Agent(tmp_path, *args, **kwargs)
        started.append(agent)
        return agent

    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.fail("these tests need root and unshare, for the namespaces")
    yield start
    for agent in started:
        agent.stop()


@pytest.fixture
def agent(agents):
    return agents()


@pytest.fixture
def client(agent, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    client = agent.hello()
    client.configure(workdir=str(work))
    client.work = work
    return client
