"""The real podsandboxd under test, and a small client for it."""

import base64
import ctypes
import hashlib
import json
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, quote_from_bytes

import requests

from fake_node import Spawner

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PODSANDBOX_BUILD") or ROOT / "build/release").resolve()
SERVER = BUILD / "server/podsandboxd"
AGENT = BUILD / "agent/podsandbox-agent"
WRAPPER = shlex.split(os.environ.get("PODSANDBOX_WRAPPER", ""))
SOAK = os.environ.get("PODSANDBOX_SOAK") == "1"
POOL_THREADS = 16  # of a server, that start when they are needed
SLOW = bool(WRAPPER) or SOAK  # time limits of the harness, never asserted
REPORTS = re.compile(r"^==\d+==|ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error: |Assertion .* failed|stack smashing", re.M)
SO_ATTACH_FILTER = 26
START_TIMEOUT = 120 if SLOW else 30


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def key_hash(key):
    return hashlib.blake2b(key.encode(), digest_size=32).hexdigest()


def wait_until(predicate, timeout=30, what="the condition"):
    """Polls where there is no event to wait for. WHAT is for the message: a text, or a function that makes one."""
    end = time.monotonic() + timeout * (4 if SLOW else 1)
    while True:
        value = predicate()
        if value:
            return value
        assert time.monotonic() < end, f"{what() if callable(what) else what} did not come about in {timeout} s"
        time.sleep(0.02)


def at_once(count, call):
    """The results of COUNT calls that begin together."""
    barrier = threading.Barrier(count)

    def one(_):
        barrier.wait()
        return call()
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


class Problem(AssertionError):
    def __init__(self, response, wanted):
        super().__init__(f"{response.request.method} {response.request.url}: {response.status_code}, not {wanted}: "
                         f"{response.text[:2000]}")
        self.response = response


def path_query(path):
    return "path=" + (quote_from_bytes(path, safe="") if isinstance(path, bytes) else quote(path, safe=""))


class Client:
    """A caller, with a key or without. Every method checks the status; problem() is for those that must fail."""

    def __init__(self, base, key=None, image="localhost/python:1"):
        self.base, self.key, self.image = base, key, image
        self.local = threading.local()

    @property
    def session(self):
        if not hasattr(self.local, "session"):
            self.local.session = requests.Session()
            self.local.session.trust_env = False
        return self.local.session

    def request(self, method, path, expect=None, headers=None, timeout=120, **options):
        headers = dict(headers or {})
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        response = self.session.request(method, self.base + path, headers=headers, timeout=timeout, **options)
        if expect is not None and response.status_code not in (expect if isinstance(expect, tuple) else (expect,)):
            raise Problem(response, expect)
        return response

    def get(self, path, **options):
        return self.request("GET", path, options.pop("expect", 200), **options).json()

    def post(self, path, body=None, expect=200, **options):
        return self.request("POST", path, expect, json=body if body is not None else {}, **options).json()

    def problem(self, method, path, status, code=None, **options):
        """The answer must be that problem; STATUS is one, or a tuple of them."""
        response = self.request(method, path, status, **options)
        assert response.headers["Content-Type"].startswith("application/problem+json"), response.headers
        problem = response.json()
        assert problem["status"] == response.status_code and problem["request_id"] and problem["detail"], problem
        if code:
            assert problem["code"] == code, problem
        problem["headers"] = response.headers
        return problem

    # --- sandboxes ------------------------------------------------------------
    def create(self, id=None, expect=201, headers=None, **spec):
        if id:
            spec["id"] = id
        spec.setdefault("image", self.image)
        return self.post("/v1/sandboxes", spec, expect, headers=headers)

    def create_problem(self, status, code=None, headers=None, **spec):
        spec.setdefault("image", self.image)
        return self.problem("POST", "/v1/sandboxes", status, code, json=spec, headers=headers)

    def sandbox(self, id, **options):
        return self.get(f"/v1/sandboxes/{id}", **options)

    def delete(self, id, expect=204):
        return self.request("DELETE", f"/v1/sandboxes/{id}", expect)

    def list(self, query=""):
        """All pages."""
        items, cursor = [], ""
        while cursor is not None:
            page = self.get(f"/v1/sandboxes?limit=100{query}{cursor and '&cursor=' + quote(cursor)}")
            items, cursor = items + page["items"], page["next"]
        return items

    def wait_state(self, id, state, timeout=60):
        record = {}

        def look():
            response = self.request("GET", f"/v1/sandboxes/{id}", (200, 410))
            record.update(response.json() if response.status_code == 200 else response.json()["sandbox"])
            return record if record["state"] == state else None
        return wait_until(look, timeout, lambda: f"{id} being {state}, and not {record},")

    def settled(self, id, timeout=60):
        """The state of a sandbox once it is being made no longer."""
        def look():
            answer = self.request("GET", f"/v1/sandboxes/{id}", (200, 410)).json()
            state = answer.get("sandbox", answer)["state"]
            return state if state in ("running", "failed", "gone") else None
        return wait_until(look, timeout, f"{id} being settled")

    def preview(self, id, expect=(200, 201), **body):
        body.setdefault("port", 8000)
        return self.request("POST", f"/v1/sandboxes/{id}/previews", expect, json=body).json()

    # --- commands ---------------------------------------------------------------
    def exec(self, id, cmd, expect=200, timeout_s=120, **body):
        return self.post(f"/v1/sandboxes/{id}/execs", {"cmd": shell(cmd), **body}, expect, timeout=timeout_s)

    def exec_problem(self, id, cmd, status, code=None, **body):
        return self.problem("POST", f"/v1/sandboxes/{id}/execs", status, code, json={"cmd": shell(cmd), **body})

    def start(self, id, cmd, **body):
        """An exec whose client does not wait: its record."""
        body.setdefault("stdin_encoding", "raw")
        body.setdefault("on_disconnect", "keep")
        return self.post(f"/v1/sandboxes/{id}/execs", {"cmd": shell(cmd), **body}, 202)

    def exec_wait(self, id, number, timeout=120):
        def look():
            record = self.get(f"/v1/sandboxes/{id}/execs/{number}?wait=10")
            return record if record["state"] != "running" else None
        return wait_until(look, timeout, f"exec {number} of {id} ending")

    def feed(self, id, number, data):
        """The whole of a raw input."""
        self.request("PUT", f"/v1/sandboxes/{id}/execs/{number}/stdin", (200, 204), data=data)

    def output(self, id, number, stream="stdout", offset=0, **options):
        return self.request("GET", f"/v1/sandboxes/{id}/execs/{number}/output?stream={stream}&offset={offset}",
                            options.pop("expect", 200), **options)

    # --- files --------------------------------------------------------------------
    def file_url(self, id, path, more=""):
        return f"/v1/sandboxes/{id}/files?{path_query(path)}{more}"

    def put(self, id, path, data, expect=(200, 201, 204), more="", **options):
        return self.request("PUT", self.file_url(id, path, more), expect, data=data, **options)

    def read(self, id, path, expect=200, **options):
        return self.request("GET", self.file_url(id, path), expect, **options).content

    def tree(self, id, path=".", more=""):
        return self.get(f"/v1/sandboxes/{id}/tree?{path_query(path)}{more}")


def text_of(result, stream="stdout"):
    """The bytes that a command wrote."""
    return base64.b64decode(result[stream]) if result[stream + "_encoding"] == "base64" else result[stream].encode()


def sanitized():
    """Memory is not to be measured: a sanitizer or valgrind keeps what was freed."""
    return bool(WRAPPER) or b"__asan_init" in SERVER.read_bytes() or b"__tsan_init" in SERVER.read_bytes()


def shell(cmd):
    return ["sh", "-c", cmd] if isinstance(cmd, str) else cmd


class Server:
    """podsandboxd against a fake API server. One store for all its lives."""

    image = "localhost/python:1"  # what its sandboxes run unless a test says otherwise: has sh, coreutils, Python and git

    def __init__(self, api, directory, options=(), keys=None, env=None):
        self.api, self.dir = api, Path(directory)
        self.spawner = api.node.spawner if api else Spawner()
        self.dir.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.store = self.dir / "store.db"
        self.key_file = self.dir / "server.key"
        self.log_file = self.dir / "server.log"
        self.kubeconfig = self.dir / "kubeconfig"
        self.token_file = None
        self.options, self.keys, self.env = list(options), dict(keys or {}), dict(env or {})
        self.process = None
        self.clean = True
        self.write_kubeconfig()
        if self.keys:
            self.write_keys()

    def write_kubeconfig(self, user=None, server=None):
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "fake",
                  "clusters": [{"name": "fake", "cluster": {"server": server or f"http://127.0.0.1:{self.api.port}"}}],
                  "users": [{"name": "fake", "user": user or {"token": "kubeconfig-token"}}],
                  "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}]}
        self.kubeconfig.write_text(json.dumps(config))

    def write_keys(self):
        lines = [f"{key_hash(key)} {owner} {role}\n" for key, (owner, role) in self.keys.items()]
        new = self.dir / "api-keys.new"
        new.write_text("# hash owner role\n" + "".join(lines))
        new.rename(self.dir / "api-keys")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def client(self, key=None):
        return Client(self.url, key, self.image)

    def driver_options(self):
        return ["--driver", "kubernetes", "--kubeconfig", self.kubeconfig, "--namespace", "sandboxes",
                "--agent-image", "localhost/podsandbox:1"]

    def command(self):
        args = [*WRAPPER, SERVER, "--listen", f"127.0.0.1:{self.port}", "--store", self.store, "--key-file", self.key_file,
                "--image", self.image, "--log-level", "debug", *self.driver_options()]
        if self.keys:
            args += ["--api-keys-file", self.dir / "api-keys"]
        return [str(arg) for arg in args + self.options]

    # --- life -----------------------------------------------------------------------
    def spawn(self):
        env = {"PATH": os.environ["PATH"], "HOME": str(self.dir), "TZ": "UTC",
               **{name: value for name, value in os.environ.items() if name.endswith("SAN_OPTIONS")}, **self.env}
        with open(self.log_file, "ab") as log:
            self.process = self.spawner.start(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                              cwd=self.dir)
        return self

    def start(self):
        self.spawn()
        self.wait_ready()
        return self

    def wait_ready(self):
        def ready():
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.log()[-4000:]}"
            return self.answers("/readyz") == 200
        wait_until(ready, START_TIMEOUT, "the server being ready")

    def answers(self, path):
        try:
            return requests.get(self.url + path, timeout=5).status_code
        except requests.RequestException:
            return None

    def end(self):
        """It must end well, and not run afterwards in any case."""
        try:
            self.stop()
        finally:
            if self.process and self.process.poll() is None:
                self.kill()

    def revive(self):
        """After a test that was to leave it running."""
        code = self.process.poll()
        if code is not None:
            self.process = None
            self.start()
            raise AssertionError(f"the server ended with {code}")

    def kill(self):
        """SIGKILL: a crash."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """SIGTERM: must end well, and leave no report of a sanitizer."""
        if self.process is None or self.process.poll() is not None:
            self.check_log()
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(START_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait()
            raise AssertionError(f"the server did not stop:\n{self.log()[-4000:]}") from None
        self.check_log()
        assert self.process.returncode == 0, f"exit code {self.process.returncode}:\n{self.log()[-4000:]}"

    def restart(self, empty_store=False):
        self.stop()
        self.forget() if empty_store else None
        return self.start()

    def forget(self):
        """The store is lost; the key file is not."""
        for path in self.dir.glob("store.db*"):
            if path.is_file() and path != self.key_file:
                path.unlink()
        for path in self.dir.iterdir():
            if path.is_dir():
                subprocess.run(["rm", "-rf", path], check=True)

    def log(self):
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def check_log(self):
        found = REPORTS.search(self.log())
        assert not found, f"the log has a report:\n{self.log()[max(0, found.start() - 500):found.start() + 6000]}"

    # --- what it uses -----------------------------------------------------------------
    def pid(self):
        """Of podsandboxd itself, a wrapper's child or not."""
        return self.process.pid

    def descriptors(self):
        """What each open descriptor is, for messages."""
        directory = Path(f"/proc/{self.pid()}/fd")
        return sorted(os.readlink(path) for path in directory.iterdir() if os.path.lexists(path))

    def usage(self):
        proc = Path(f"/proc/{self.pid()}")
        fields = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        return {"fds": len(os.listdir(proc / "fd")), "threads": int(fields["Threads"]), "rss": int(fields["VmRSS"].split()[0])}


# --- sockets that misbehave -----------------------------------------------------------
def raw_request(port, data, timeout=30):
    """Everything that comes back until the server closes, or nothing more comes for TIMEOUT seconds."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as sock:
        sock.sendall(data)
        answer = b""
        try:
            while piece := sock.recv(65536):
                answer += piece
        except socket.timeout:
            return answer, False
        except ConnectionResetError:
            pass
        return answer, True


def open_request(port, method, path, body=b"", headers=None):
    """A socket with one request sent on it."""
    lines = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json", "Content-Length": len(body), **(headers or {})}
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    sock = socket.create_connection(("127.0.0.1", port), timeout=60)
    sock.sendall(head.encode() + body)
    return sock


def reset(sock):
    """The client is gone with a TCP RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def unplug(sock):
    """From now on whatever comes for this socket is dropped before TCP sees it, as if the cable were out: a socket filter
    that lets nothing through. No RST and no FIN reaches the other side. Keep the socket open."""
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(instruction)))
