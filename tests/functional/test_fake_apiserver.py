"""The fake itself: what it answers, and that the agent really runs behind its exec stream."""

import http.client
import json
import os
import socket
import struct

import pytest

from fake_apiserver import ApiServer
from fake_websocket import WebSocket, accept_key
from fake_http import Closed, Connection
from server import AGENT, wait_until

PODS = "/api/v1/namespaces/sandboxes/pods"


@pytest.fixture(scope="module")
def kube(node_root):
    api = ApiServer(node_root / "fake", AGENT)
    yield api
    api.close()


@pytest.fixture(autouse=True)
def clean(kube):
    yield
    kube.clear()
    for item in kube.all("pods"):
        kube.remove("pods", item["metadata"]["name"])


def ask(kube, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", kube.port, timeout=30)
    connection.request(method, path, json.dumps(body) if body is not None else None, headers or {})
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, json.loads(data) if data[:1] in (b"{", b"[") else data


def pod(name="sandbox-a", **labels):
    return {"metadata": {"name": name, "labels": {"podsandbox.dev/sandbox-id": name[8:], **labels}},
            "spec": {"securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000},
                     "containers": [{"name": "sandbox", "image": "x", "workingDir": "/workspace",
                                     "command": ["/opt/podsandbox/podsandbox-agent", "serve"],
                                     "env": [{"name": "HOME", "value": "/home/sandbox"}],
                                     "volumeMounts": [{"name": "workspace", "mountPath": "/workspace"},
                                                      {"name": "tmp", "mountPath": "/tmp"},
                                                      {"name": "home", "mountPath": "/home/sandbox"},
                                                      {"name": "agent", "mountPath": "/opt/podsandbox", "readOnly": True}]}],
                     "volumes": [{"name": "workspace", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}},
                                 {"name": "home", "emptyDir": {}}, {"name": "agent", "image": {"reference": "x"}}]}}


def test_objects(kube):
    status, made = ask(kube, "POST", PODS, pod())
    assert status == 201 and made["metadata"]["uid"] and made["metadata"]["resourceVersion"]
    status, again = ask(kube, "POST", PODS, pod())
    assert status == 409 and again["reason"] == "AlreadyExists"
    assert ask(kube, "GET", PODS + "/sandbox-a")[1]["metadata"]["uid"] == made["metadata"]["uid"]
    assert ask(kube, "GET", PODS + "/none")[0] == 404
    assert ask(kube, "POST", PODS + "?dryRun=All", pod("sandbox-dry"))[0] == 201
    assert ask(kube, "GET", PODS + "/sandbox-dry")[0] == 404
    assert ask(kube, "POST", "/api/v1/namespaces/nowhere/pods", pod())[0] == 404
    assert len(ask(kube, "GET", PODS + "?labelSelector=podsandbox.dev%2Fsandbox-id%3Da")[1]["items"]) == 1
    assert ask(kube, "GET", PODS + "?labelSelector=podsandbox.dev%2Fsandbox-id%3Db")[1]["items"] == []
    assert ask(kube, "DELETE", PODS + "/sandbox-a", {"preconditions": {"uid": "other"}})[0] == 409
    assert ask(kube, "DELETE", PODS + "/sandbox-a", {"preconditions": {"uid": made["metadata"]["uid"]}, "gracePeriodSeconds": 0})[0] == 200
    assert ask(kube, "GET", PODS + "/sandbox-a")[0] == 404
    assert ask(kube, "GET", "/version")[1]["minor"] == "35"
    assert ask(kube, "GET", "/apis/node.k8s.io/v1/runtimeclasses/gvisor")[0] == 200
    assert ask(kube, "GET", "/api/v1/namespaces/sandboxes")[0] == 200


def test_pages(kube):
    kube.node.scripts[None] = lambda node, item: None
    for index in range(5):
        ask(kube, "POST", PODS, pod(f"sandbox-p{index}"))
    page = ask(kube, "GET", PODS + "?limit=2")[1]
    assert len(page["items"]) == 2
    more = ask(kube, "GET", PODS + "?limit=9&continue=" + page["metadata"]["continue"])[1]
    assert len(more["items"]) == 3 and "continue" not in more["metadata"]
    kube.store.compact()
    assert ask(kube, "GET", PODS + "?limit=2&continue=" + page["metadata"]["continue"])[0] == 410


def watch(kube, version, more=""):
    connection = http.client.HTTPConnection("127.0.0.1", kube.port, timeout=30)
    connection.request("GET", f"{PODS}?watch=1&resourceVersion={version}{more}")
    response = connection.getresponse()
    return connection, (json.loads(line) for line in iter(response.readline, b""))


def test_watch(kube):
    kube.node.scripts[None] = lambda node, item: node.unschedulable(item)
    version = ask(kube, "GET", PODS)[1]["metadata"]["resourceVersion"]
    connection, events = watch(kube, version)
    ask(kube, "POST", PODS, pod())
    assert next(events)["type"] == "ADDED"
    assert next(events)["object"]["status"]["conditions"][0]["reason"] == "Unschedulable"
    kube.remove("pods", "sandbox-a")
    assert next(events)["type"] == "DELETED"
    kube.stop_watches()
    assert next(events, None) is None
    kube.store.compact()
    connection, events = watch(kube, version)
    error = next(events)
    assert error["type"] == "ERROR" and error["object"]["code"] == 410
    kube.bookmark_every = 0.1
    connection, events = watch(kube, kube.store.version, "&allowWatchBookmarks=true")
    assert next(events)["type"] == "BOOKMARK"
    kube.bookmark_every = 5
    connection.close()


def test_faults(kube):
    fault = kube.refuse(403, "no", verb="create", kind="pods")
    assert ask(kube, "POST", PODS, pod())[0] == 403
    assert ask(kube, "POST", PODS, pod())[0] == 201 and fault.hits == 1
    kube.cut(after=True, verb="create", kind="pods")
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        ask(kube, "POST", PODS, pod("sandbox-b"))
    assert kube.get("pods", "sandbox-b")
    kube.tokens = {"t"}
    assert ask(kube, "GET", PODS)[0] == 401
    assert ask(kube, "GET", PODS, headers={"Authorization": "Bearer t"})[0] == 200
    kube.tokens = None
    kube.denied.add(("list", "pods"))
    assert "cannot list" in ask(kube, "GET", PODS)[1]["message"]


# --- exec ------------------------------------------------------------------------------------
class Stream:
    """The client's side, as simple as can be."""

    def __init__(self, kube, name, command, protocols="v5.channel.k8s.io, v4.channel.k8s.io"):
        self.connection = Connection(socket.create_connection(("127.0.0.1", kube.port), timeout=30))
        query = "&".join(f"command={word}" for word in command)
        self.connection.send((f"GET {PODS}/{name}/exec?container=sandbox&stdin=true&stdout=true&stderr=true&{query} HTTP/1.1\r\n"
                              "Host: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                              f"Sec-WebSocket-Key: a2V5\r\nSec-WebSocket-Protocol: {protocols}\r\n\r\n").encode())
        self.status = int(self.connection.read_line().split()[1])
        self.headers = {}
        while line := self.connection.read_line():
            name, value = line.split(": ", 1)
            self.headers[name.lower()] = value

    def send(self, payload):
        mask = os.urandom(4)
        body = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
        assert len(payload) < 126
        self.connection.send(bytes([0x82, 0x80 | len(payload)]) + mask + body)

    def frames(self):
        while True:
            head = self.connection.read_exactly(2)
            size = head[1]
            if size == 126:
                size = struct.unpack(">H", self.connection.read_exactly(2))[0]
            yield head[0] & 0x0F, self.connection.read_exactly(size)

    def until_close(self):
        channels = {1: b"", 2: b"", 3: b""}
        for opcode, payload in self.frames():
            if opcode == 8:
                return channels
            channels[payload[0]] += payload[1:]


@pytest.fixture
def running(kube):
    ask(kube, "POST", PODS, pod())
    wait_until(lambda: kube.node.containers.get(kube.get("pods", "sandbox-a")["metadata"]["uid"]))
    container = kube.node.container("a")
    wait_until(container.agent_runs)
    wait_until(lambda: kube.get("pods", "sandbox-a")["status"]["phase"] == "Running")
    return container


def test_pid_1_is_the_agent(kube, running):
    code, out, err = running.run("sh", "-c", "cat /proc/1/comm; id -u; pwd; echo $$ >/workspace/x; ls -l /opt/podsandbox; "
                                 "awk '/^PPid/{print $2}' /proc/$$/status; touch /usr/x 2>&1")
    assert code != 0 and b"podsandbox-agen" in out and b"1000" in out and b"-rwx--x--x" in out and b"Read-only" in out
    assert b"\n0\n" in out  # what enters has no parent inside


def test_exec_of_a_command(kube, running):
    stream = Stream(kube, "sandbox-a", ["sh", "-c", "cat%3Becho+err+>%262%3Bexit+3"])
    assert stream.status == 101 and stream.headers["sec-websocket-accept"] == accept_key("a2V5")
    assert stream.headers["sec-websocket-protocol"] == "v5.channel.k8s.io"
    stream.send(b"\x00hello")
    stream.send(b"\xff\x00")
    channels = stream.until_close()
    assert channels[1] == b"hello" and channels[2] == b"err\n"
    assert json.loads(channels[3])["details"]["causes"][0]["message"] == "3"


def test_the_agent_answers_a_hello(kube, running):
    stream = Stream(kube, "sandbox-a", ["/opt/podsandbox/podsandbox-agent", "attach"])
    fields = b"".join(struct.pack("<HI", tag, len(value)) + value for tag, value in (
        (1, struct.pack("<I", 1)), (2, b"t" * 32), (3, b"uid"), (4, b"test")))
    stream.send(b"\x00" + struct.pack("<IIB", len(fields), 0, 1) + fields)
    frames = stream.frames()
    assert next(frames)[1] == b"\x01"  # the empty first message
    got = b""
    while len(got) < 9:
        got += next(frames)[1][1:]
    size, channel, kind = struct.unpack("<IIB", got[:9])
    assert channel == 0 and kind == 2, got
    live = kube.stream("a")
    live.reset()
    with pytest.raises(Closed):
        next(frames)


def test_exec_refusals(kube):
    assert Stream(kube, "sandbox-none", ["x"]).status == 404
    kube.node.scripts[None] = lambda node, item: node.unschedulable(item)
    ask(kube, "POST", PODS, pod("sandbox-c"))
    assert Stream(kube, "sandbox-c", ["x"]).status == 400
    kube.exec_fault("c", refuse=(503, b"busy", "text/plain"))
    assert Stream(kube, "sandbox-c", ["x"]).status == 503


def test_death_and_deletion(kube, running):
    inner = running.inner
    os.kill(inner, 9)
    wait_until(lambda: kube.get("pods", "sandbox-a")["status"]["phase"] == "Failed")
    state = kube.get("pods", "sandbox-a")["status"]["containerStatuses"][0]["state"]
    assert state["terminated"]["exitCode"] == 137
    kube.remove("pods", "sandbox-a")
    wait_until(lambda: not running.dir.exists())


def test_deletion_ends_every_process(kube, running):
    running.run("sh", "-c", "sleep 1000 >/dev/null 2>&1 &")
    inner = running.inner
    kube.remove("pods", "sandbox-a")
    wait_until(lambda: not os.path.exists(f"/proc/{inner}"))
    wait_until(lambda: not running.dir.exists())


def test_websocket_reads_fragments(kube):
    left, right = socket.socketpair(socket.AF_UNIX)
    left.sendall(b"\x02\x82\0\0\0\0ab" b"\x89\x81\0\0\0\0p" b"\x80\x81\0\0\0\0c" b"\x88\x80\0\0\0\0")
    reader = WebSocket(Connection(right))
    assert list(reader.messages()) == [(2, b"abc")] and reader.pings == 1
    assert left.recv(100) == b"\x8a\x01p"
    left.close()
    right.close()
