#!/usr/bin/env python3
"""How long a sandbox of the local driver takes to be ready, and a command in it; and what the same costs without us.

    tests/bench/local.py [BUILD]        default: build/release. Nothing is asserted.
"""

import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUILD = Path(sys.argv[1] if len(sys.argv) > 1 else "build/release").resolve()
PORT = 18997
CREATES, EXECS, IDLE = 100, 1000, 200


class Api:
    def __init__(self):
        self.connection = http.client.HTTPConnection("127.0.0.1", PORT)

    def call(self, method, path, body=None):
        self.connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        data = response.read()
        assert response.status < 300, (response.status, data)
        return data


def times(action, count):
    taken = []
    for number in range(count):
        begin = time.perf_counter()
        action(number)
        taken.append((time.perf_counter() - begin) * 1000)
    return taken


def show(name, taken):
    taken = sorted(taken)
    print(f"{name:44} p50 {statistics.median(taken):8.2f} ms   p95 {taken[int(len(taken) * .95)]:8.2f} ms   n {len(taken)}")


def rss(pid):
    return int(next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")).split()[1])


def children_memory(pid):
    """Proportional memory of all that the server has started, KiB."""
    total = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"--listen-fd" in (path / "cmdline").read_bytes():
                total += int(next(line for line in (path / "smaps_rollup").read_text().splitlines() if line.startswith("Pss:")).split()[1])
        except (FileNotFoundError, ProcessLookupError, StopIteration, PermissionError):
            continue
    return total


def wait_ready(server):
    while server.poll() is None:
        try:
            return Api().call("GET", "/readyz")
        except (ConnectionError, AssertionError):
            time.sleep(0.02)
    raise SystemExit("the server has ended")


def measure(api, server):
    show("create -> ready", times(lambda n: api.call("POST", "/v1/sandboxes", {"id": f"c{n}"}), CREATES))
    show("exec true", times(lambda n: api.call("POST", "/v1/sandboxes/c0/execs", {"cmd": ["true"]}), EXECS))
    show("read 1 KiB", times(lambda n: api.call("GET", "/v1/sandboxes/c0/files?path=/etc/passwd"), 200))
    show("delete", times(lambda n: api.call("DELETE", f"/v1/sandboxes/c{n}"), CREATES))
    minimal = ["bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
               "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "true"]
    show("for comparison: bwrap … true", times(lambda n: subprocess.run(minimal, check=True), 100))
    before = rss(server.pid)
    for n in range(IDLE):
        api.call("POST", "/v1/sandboxes", {"id": f"i{n}"})
    print(f"{IDLE} idle: server {before} -> {rss(server.pid)} KiB, {(rss(server.pid) - before) / IDLE:.1f} KiB each; "
          f"processes {children_memory(server.pid) / IDLE:.0f} KiB each (proportional)")
    for n in range(IDLE):
        api.call("DELETE", f"/v1/sandboxes/i{n}")


def main():
    with tempfile.TemporaryDirectory() as directory:
        command = [BUILD / "server/podsandboxd", "--driver", "local", "--listen", f"127.0.0.1:{PORT}", "--store", f"{directory}/s.db",
                   "--log-level", "error"]
        server = subprocess.Popen(command, env={"PATH": os.environ["PATH"]})
        try:
            wait_ready(server)
            measure(Api(), server)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


if __name__ == "__main__":
    main()
