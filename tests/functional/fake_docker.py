"""A scripted Docker Engine. Behaves like the real one for what docker/ uses, unless a fault says otherwise; containers run the
real agent in namespaces of this machine (fake_node.Container), reached through a real hijacked exec."""

import io
import json
import os
import re
import subprocess
import tarfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from fake_apiserver import Fault
from fake_http import Closed, HttpServer, reply_head
from fake_node import AGENT, AGENT_DIR, Container, Spawner, make_agent_image

STDOUT, STDERR = 1, 2
UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
RAW_200 = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n"


def framed(stream, data):
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def one_byte_writes(data):
    return [data[i:i + 1] for i in range(len(data))]


def odd_writes(data):
    """The head of the frame is cut 3|5."""
    return [data[:3], data[3:8], data[8:]]


@dataclass
class ExecScript:
    """How an exec goes, where it differs from a good one."""

    head: bytes = UPGRADED
    split_head: bool = False  # one byte at a time
    with_head: bytes = b""  # in the same write as the head
    run: bool = True  # False: no process is behind it
    then: object = None  # then(stream), once the head is out
    shape: object = None  # shape(frame) -> byte strings that are written one by one
    after: dict = field(default_factory=lambda: {"Running": False, "ExitCode": 0})


class ExecStream:
    def __init__(self, connection, container, command, script):
        self.connection, self.container, self.command, self.script = connection, container, command, script
        self.process = None
        self.received = 0

    def send_frame(self, stream, data):
        for piece in self.script.shape(framed(stream, data)) if self.script.shape else [framed(stream, data)]:
            self.connection.send(piece)

    def reset(self):
        self.connection.reset()

    def finish(self):
        self.connection.finish()

    def serve(self):
        script = self.script
        head = script.head + script.with_head
        for piece in one_byte_writes(head) if script.split_head else [head]:
            self.connection.send(piece)
        if script.run:
            pipe = subprocess.PIPE
            self.process = self.container.enter(self.command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
            for stream, source in ((STDOUT, self.process.stdout), (STDERR, self.process.stderr)):
                threading.Thread(target=self._pump, args=(stream, source), daemon=True).start()
        if script.then:
            script.then(self)
        try:
            self._take_input()
        finally:
            self._end_process()

    def _take_input(self):
        while True:
            data, self.connection.buffer = self.connection.buffer, b""
            self.received += len(data)
            while data and self.process:
                data = data[self.process.stdin.write(data):]
            self.connection.fill()

    def _pump(self, stream, source):
        try:
            while data := os.read(source.fileno(), 1 << 15):
                self.send_frame(stream, data)
            if stream == STDOUT:
                self.connection.finish()
        except (Closed, OSError, ValueError):
            pass

    def _end_process(self):
        if self.process is None:
            return
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                pipe.close()
            except (OSError, ValueError):
                pass
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Box:
    """One container of the engine."""

    def __init__(self, engine, name, body):
        self.engine, self.name, self.body = engine, name, body
        self.id = os.urandom(32).hex()
        self.agent = None  # the mode that it was put in with
        self.state = {"Status": "created", "Running": False, "ExitCode": 0, "OOMKilled": False, "Error": ""}
        self.container = None

    def pod(self):
        """As fake_node.Container takes it."""
        user, group = self.body.get("User", "0:0").split(":")
        places = list(self.body["HostConfig"]["Tmpfs"])
        mounts = [{"name": f"v{i}", "mountPath": path} for i, path in enumerate(places)]
        return {
            "metadata": {"uid": self.id[:16]},
            "spec": {
                "securityContext": {"runAsUser": int(user), "runAsGroup": int(group), "fsGroup": int(group)},
                "volumes": [{"name": mount["name"], "emptyDir": {}} for mount in mounts] + [{"name": "agent", "image": {}}],
                "containers": [{
                    "command": self.body["Entrypoint"], "workingDir": self.body["WorkingDir"],
                    "env": [dict(zip(("name", "value"), entry.split("=", 1))) for entry in self.body.get("Env", [])],
                    "volumeMounts": [*mounts, {"name": "agent", "mountPath": AGENT_DIR, "readOnly": True}]}]}}

    def start(self):
        self.container = Container(self.engine, self.pod())
        self.container.start()
        while not self.container.agent_runs() and self.container.process.poll() is None:
            time.sleep(0.002)
        self.state.update(Status="running", Running=True)
        threading.Thread(target=self._reap, args=(self.container,), daemon=True).start()

    def _reap(self, container):
        container.process.wait()
        self.ended(container.exit_code())

    def ended(self, code, **more):
        self.state.update(Status="exited", Running=False, ExitCode=code, **more)
        self.engine.event("die", self, exitCode=str(code))

    def remove(self):
        if self.container:
            self.container.remove()

    def labels(self):
        return self.body["Labels"]

    def inspection(self):
        return {"Id": self.id, "Name": "/" + self.name, "State": self.state, "Config": {"Labels": self.labels(), "Image": self.body["Image"]}}

    def item(self):
        return {"Id": self.id, "Names": ["/" + self.name], "Labels": self.labels(), "State": self.state["Status"], "Image": self.body["Image"]}


class DockerEngine(HttpServer):
    def __init__(self, directory, agent):
        self.dir = Path(directory)
        (self.dir / "agent-image").mkdir(parents=True)
        self.agent_image = make_agent_image(self.dir / "agent-image", agent)
        self.spawner, self.tmpfs_sizes = Spawner(), {}
        self.boxes, self.execs = {}, {}
        self.images = {"localhost/python:1"}
        self.networks = {"none", "bridge"}
        self.api_version = ("1.41", "1.12")
        self.runtimes = {"runc": {}, "runsc": {}}
        self.faults, self.exec_scripts = [], []
        self.streams, self.calls = [], []
        self.watchers = []
        self.state_lock = threading.RLock()
        super().__init__()

    @property
    def url(self):
        return f"tcp://127.0.0.1:{self.port}"

    # --- what tests do to it ----------------------------------------------------------------
    def fault(self, method, pattern, act, times=1):
        """act(connection, request) instead of the answer. It may call answer() itself."""
        fault = Fault(act, times, lambda request: request.method == method and re.search(pattern, request.path))
        self.faults.append(fault)
        return fault

    def refuse(self, method, pattern, status, message, times=1):
        return self.fault(method, pattern, lambda connection, _: connection.send_reply(status, {"message": message}), times)

    def script_exec(self, script, times=1):
        self.exec_scripts.extend([script] * times)

    def clear(self):
        self.faults.clear()
        self.exec_scripts.clear()

    def box(self, id):
        return next((box for box in list(self.boxes.values()) if box.name == f"sandbox-{id}"), None)

    def count(self, method, pattern):
        return sum(1 for request in list(self.calls) if request.method == method and re.search(pattern, request.path))

    def close(self):
        self.stop()
        for box in list(self.boxes.values()):
            box.remove()
        self.spawner.jobs.put(None)

    # --- events ---------------------------------------------------------------------------------
    def event(self, action, box, **attributes):
        line = {"Type": "container", "Action": action, "Actor": {"ID": box.id, "Attributes": {**box.labels(), "name": box.name, **attributes}},
                "timeNano": time.time_ns()}
        with self.state_lock:
            for connection in list(self.watchers):
                try:
                    connection.send_chunk(json.dumps(line).encode() + b"\n")
                except Closed:
                    self.watchers.remove(connection)

    def cut_events(self):
        with self.state_lock:
            watchers, self.watchers = self.watchers, []
        for connection in watchers:
            connection.close()

    # --- requests ---------------------------------------------------------------------------------
    def handle(self, connection, request):
        request.path = re.sub(r"^/v1\.\d+", "", request.path)
        self.calls.append(request)
        for fault in list(self.faults):
            if fault.take(request):
                fault.act(connection, request)
                return
        self.answer(connection, request)

    def answer(self, connection, request):
        for method, pattern, route in self.ROUTES:
            match = re.fullmatch(pattern, request.path)
            if match and method == request.method:
                route(self, connection, request, *match.groups())
                return
        connection.send_reply(404, {"message": "page not found"})

    def find(self, connection, name):
        box = next((box for box in list(self.boxes.values()) if name in (box.name, box.id) or (len(name) > 8 and box.id.startswith(name))), None)
        if box is None:
            connection.send_reply(404, {"message": f"No such container: {name}"})
        return box

    def version(self, connection, _):
        connection.send_reply(200, {"Version": "20.10", "ApiVersion": self.api_version[0], "MinAPIVersion": self.api_version[1]})

    def info(self, connection, _):
        connection.send_reply(200, {
            "SystemTime": time.strftime("%Y-%m-%dT%H:%M:%S.123456789Z", time.gmtime()), "Runtimes": self.runtimes, "ServerVersion": "20.10",
            "CpuCfsQuota": True, "MemoryLimit": True, "PidsLimit": True})

    def wanted(self, request):
        labels = json.loads(request.param("filters", "{}")).get("label", [])
        return [box for box in list(self.boxes.values())
                if all(box.labels().get(label.split("=")[0]) == label.split("=", 1)[1] for label in labels)]

    def list(self, connection, request):
        connection.send_reply(200, [box.item() for box in self.wanted(request)])

    def inspect(self, connection, _, name):
        if box := self.find(connection, name):
            connection.send_reply(200, box.inspection())

    def create(self, connection, request):
        body, name = request.json(), request.param("name")
        if any(box.name == name for box in list(self.boxes.values())):
            connection.send_reply(409, {"message": f'Conflict. The container name "/{name}" is already in use by container "x".'})
        elif body["Image"] not in self.images:
            connection.send_reply(404, {"message": f"No such image: {body['Image']}"})
        else:
            box = Box(self, name, body)
            self.boxes[box.id] = box
            connection.send_reply(201, {"Id": box.id, "Warnings": []})

    def put_archive(self, connection, request, name):
        if box := self.find(connection, name):
            assert request.param("path") == AGENT_DIR, request.query
            with tarfile.open(fileobj=io.BytesIO(request.body)) as archive:
                members = archive.getmembers()
                assert [member.name for member in members] == [AGENT] and members[0].uid == 0, members
                assert archive.extractfile(members[0]).read() == (self.agent_image / AGENT).read_bytes()
                box.agent = members[0].mode
            connection.send_reply(200)

    def start_container(self, connection, _, name):
        if box := self.find(connection, name):
            if box.body["HostConfig"]["NetworkMode"] not in self.networks:
                connection.send_reply(404, {"message": f"network {box.body['HostConfig']['NetworkMode']} not found"})
            elif box.agent is None:
                connection.send_reply(400, {"message": f'OCI runtime create failed: exec: "{AGENT_DIR}/{AGENT}": no such file or directory'})
            else:
                box.start()
                self.event("start", box)
                connection.send_reply(204)

    def delete(self, connection, request, name):
        if box := self.find(connection, name):
            assert request.param("v") == "true" and request.param("force") == "true", request.query
            del self.boxes[box.id]
            box.remove()
            self.event("destroy", box)
            connection.send_reply(204)

    def make_exec(self, connection, request, name):
        if box := self.find(connection, name):
            if not box.state["Running"]:
                connection.send_reply(409, {"message": f"Container {box.id} is not running"})
                return
            id = os.urandom(32).hex()
            self.execs[id] = (box, request.json())
            connection.send_reply(201, {"Id": id})

    def start_exec(self, connection, request, id):
        assert request.headers.get("upgrade") == "tcp" and request.json() == {"Detach": False, "Tty": False}, request
        box, body = self.execs.pop(id)
        assert body["Cmd"] == [f"{AGENT_DIR}/{AGENT}", "attach"] and body["AttachStdin"] and not body["Tty"], body
        script = self.exec_scripts.pop(0) if self.exec_scripts else ExecScript()
        stream = ExecStream(connection, box.container, body["Cmd"], script)
        self.streams.append(stream)
        stream.serve()

    def events(self, connection, _):
        connection.begin_chunked()
        with self.state_lock:
            self.watchers.append(connection)
        connection.fill()  # its end

    def pull(self, connection, request):
        image = f"{request.param('fromImage')}:{request.param('tag')}"
        connection.send_reply(404, {"message": f"pull access denied for {image}, repository does not exist or may require 'docker login'"})

    def network(self, connection, _, name):
        if name in self.networks:
            connection.send_reply(200, {"Name": name})
        else:
            connection.send_reply(404, {"message": f"network {name} not found"})

    def make_network(self, connection, request):
        body = request.json()
        assert body["Options"] == {"com.docker.network.bridge.enable_icc": "false"}, body
        self.networks.add(body["Name"])
        connection.send_reply(201, {"Id": os.urandom(32).hex()})

    ROUTES = (
        ("GET", "/version", version), ("GET", "/info", info), ("GET", "/containers/json", list),
        ("GET", "/containers/([^/]+)/json", inspect), ("POST", "/containers/create", create),
        ("PUT", "/containers/([^/]+)/archive", put_archive), ("POST", "/containers/([^/]+)/start", start_container),
        ("DELETE", "/containers/([^/]+)", delete), ("POST", "/containers/([^/]+)/exec", make_exec),
        ("POST", "/exec/([^/]+)/start", start_exec), ("GET", "/events", events), ("POST", "/images/create", pull),
        ("GET", "/networks/([^/]+)", network), ("POST", "/networks/create", make_network))


class Pull:
    """A pull that goes on line by line, as a test says; its answer began as a success."""

    def __init__(self, engine):
        self.engine = engine
        self.connection, self.begun, self.over = None, threading.Event(), threading.Event()
        engine.fault("POST", "/images/create", self._act)

    def _act(self, connection, request):
        self.image = f"{request.param('fromImage')}:{request.param('tag')}"
        connection.begin_chunked()
        self.connection = connection
        self.begun.set()
        self.over.wait(60)
        raise Closed("the pull is over")

    def say(self, **line):
        assert self.begun.wait(30)
        self.connection.send_chunk(json.dumps(line).encode() + b"\r\n")

    def end(self, here=True):
        if here:
            self.engine.images.add(self.image)
        self.connection.end_chunked()
        self.over.set()

    def cut(self):
        self.connection.close()
        self.over.set()


def plain_200(body):
    """A 200 with a framing of its own: what a proxy makes of an upgrade that it does not know."""
    return reply_head(200, {"Content-Type": "application/vnd.docker.raw-stream", "Transfer-Encoding": "chunked"}) + body
