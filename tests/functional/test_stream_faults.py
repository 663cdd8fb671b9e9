"""The stream to the agent, and the watch, when they go wrong: B01, B02, B03, B06, B16, B28, B31, B38, B43, B45, B50."""

import hashlib
import json
import os
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import fake_exec
from fake_apiserver import Refused
from fake_websocket import BINARY, frame
from server import SOAK, open_request, wait_until

OPTIONS = ("--reap-every", "1")
LINES = "for i in $(seq 1 %d); do echo line $i; done; echo end"


@pytest.fixture
def box(client):
    client.create("box")
    yield "box"
    client.delete("box", expect=(202, 204))


def running(client, box, cmd, **body):
    """An exec in a thread: its future."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(client.exec, box, cmd, **body)
    pool.shutdown(wait=False)
    return future


def has_process(api, box, *words):
    return any(all(word in " ".join(line) for word in words) for line in api.node.container(box).processes())


def wait_process(api, box, *words):
    wait_until(lambda: has_process(api, box, *words), what=f"a process like {words}")


CUTS = {
    "close 1000": lambda stream: stream.close(1000),
    "close 1011": lambda stream: stream.close(1011, b"internal error"),
    "RST": lambda stream: stream.reset(),
    "FIN": lambda stream: stream.finish(),
    "a status of success": lambda stream: (stream.send_status(fake_exec.SUCCESS), stream.close()),
    "a status of failure": lambda stream: (stream.send_status(fake_exec.exit_status(137)), stream.close()),
    "a failure without details": lambda stream: (stream.send_status({"status": "Failure", "message": "lost"}), stream.close()),
    "an empty status": lambda stream: (stream.send_channel(3, b""), stream.close()),
    "a status that is no JSON": lambda stream: (stream.send_status(b"{{{"), stream.close()),
    "two statuses": lambda stream: (stream.send_status(fake_exec.exit_status(1)), stream.send_status(fake_exec.SUCCESS), stream.close()),
    "a bad frame": lambda stream: (stream.socket.send_raw(b"\xff\xff\xff\xff"), stream.finish()),
    "text": lambda stream: (stream.socket.send(1, b"\x01hello"), stream.close()),
    "half a frame": lambda stream: (stream.socket.send_raw(frame(BINARY, b"\x01" + b"x" * 100)[:50]), stream.reset()),
    "an unknown channel": lambda stream: (stream.send_channel(9, b"what"), stream.close()),
}


@pytest.mark.parametrize("how", CUTS)
def test_b02_b03_the_stream_breaks_and_the_true_result_comes(client, api, box, how):
    """While a command runs, right after output: reconnected, complete, and never an invented 0."""
    future = running(client, box, "echo before; while [ ! -e go ]; do sleep 0.02; done; echo after; exit 7")
    wait_process(api, box, "while")
    stream = api.stream(box)
    before = len(api.seen("exec"))
    CUTS[how](stream)
    api.wait_seen(before + 1, verb="exec")
    client.put(box, "go", b"")
    result = future.result()
    assert result["stdout"] == "before\nafter\n" and result["exit_code"] == 7 and result["error"] is None
    client.request("DELETE", client.file_url(box, "go"), 204)


@pytest.mark.parametrize("how", ["close 1000", "RST", "FIN", "a status of success"])
def test_b01_cut_within_the_output(client, api, box, how):
    """The stream ends after some of the output: every byte is there all the same."""
    stream = api.stream(box)
    stream.cut_after(100000, CUTS[how])
    result = client.exec(box, ["seq", "1", "200000"], max_output=0)
    assert result["exit_code"] == 0
    assert client.output(box, result["id"]).content == b"".join(b"%d\n" % i for i in range(1, 200001))


def test_b01_cut_again_and_again(client, api, box):
    stop = threading.Event()

    def cutter():
        while not stop.wait(0.03):
            api.stream(box).reset()
    thread = threading.Thread(target=cutter)
    thread.start()
    try:
        for _ in range(10 if SOAK else 3):
            result = client.exec(box, "seq 1 100000; sleep 0.2; exit 3", max_output=0)
            assert result["exit_code"] == 3
            assert client.output(box, result["id"]).content == b"".join(b"%d\n" % i for i in range(1, 100001))
    finally:
        stop.set()
        thread.join()
    assert "degraded" in [item["type"] for item in client.get(f"/v1/sandboxes/{box}/events?limit=500")["items"]]


@pytest.mark.parametrize("how", ["RST", "close 1000", "a status of success"])
def test_b04_an_upload_over_a_stream_that_breaks(client, api, box, how):
    """Fewer bytes than were sent, and perhaps said to be all: never a success with a cut file."""
    client.put(box, "f", b"old")
    data = os.urandom(4 << 20)
    stream = api.stream(box)

    def cut():
        wait_until(lambda: stream.received_bytes > 196608)
        CUTS[how](stream)
    thread = threading.Thread(target=cut)
    thread.start()
    response = client.request("PUT", client.file_url(box, "f"), data=data)
    thread.join()
    have = client.read(box, "f")
    if response.status_code in (200, 201, 204):
        assert have == data
    else:
        assert response.status_code >= 500 and have == b"old", response.text


@pytest.mark.parametrize("how", ["RST", "a status of success"])
def test_b04_b05_input_over_a_stream_that_breaks(client, api, box, how):
    """A command's input goes on where it was: it reads every byte once."""
    data = os.urandom(4 << 20)
    started = client.start(box, ["sha256sum"])
    stream = api.stream(box)

    def cut():
        wait_until(lambda: stream.received_bytes > 196608)
        CUTS[how](stream)
    thread = threading.Thread(target=cut)
    thread.start()
    client.request("PUT", f"/v1/sandboxes/{box}/execs/{started['id']}/stdin", 200, data=data)
    thread.join()
    assert client.exec_wait(box, started["id"])["stdout"].split()[0] == hashlib.sha256(data).hexdigest()


def test_b53_a_download_that_cannot_be_finished_is_not_whole(server, client, api):
    """The pod goes in the middle of it: the connection breaks before the body's end."""
    client.create("half")
    client.exec("half", ["truncate", "-s", "64M", "big"])
    sock = open_request(server.port, "GET", client.file_url("half", "big"))
    sock.recv(1000)
    api.remove("pods", "sandbox-half")
    client.wait_state("half", "gone")
    got = 0
    try:
        while piece := sock.recv(1 << 20):
            got += len(piece)
    except ConnectionError:
        pass
    assert got < 64 << 20
    sock.close()


@pytest.mark.parametrize("shape", ["one_byte_messages", "one_byte_writes", "fragments"])
def test_b28_b03_frames_in_any_pieces(client, api, shape):
    api.exec_fault("pieces", shape=getattr(fake_exec, shape), times=None)
    client.create("pieces")
    result = client.exec("pieces", ["printf", "%s", "a" * 4095 + "€" + "가나다" * 50])
    assert result["stdout"] == "a" * 4095 + "€" + "가나다" * 50 and result["stdout_encoding"] == "utf-8"
    client.put("pieces", "f", bytes(range(256)))
    assert client.read("pieces", "f") == bytes(range(256))
    client.delete("pieces")


@pytest.mark.parametrize("round_", range(200 if SOAK else 10))
def test_b16_nothing_behind_the_101_is_lost(client, api, round_):
    """The head and the first frames in one write, or, from the second round on, only the first bytes of them, as half of
    a frame's header. They hold a ping of the agent's protocol in three pieces: the pong tells that no byte was lost."""
    ping = struct.pack("<IIB", 8, 0, 6) + b"eightbyt"
    frames = b"".join(frame(BINARY, b"\x01" + piece) for piece in (ping[:3], ping[3:11], ping[11:]))
    cut = round_ % len(frames) or len(frames)
    fault = api.exec_fault("first", with_head=frames[:cut], run=False)
    client.create("first", expect=202, wait=False)
    wait_until(lambda: fault.streams and fault.streams[0].open.is_set())
    stream = fault.streams[0]
    stream.socket.send_raw(frames[cut:])
    pong = struct.pack("<IIB", 8, 0, 7) + b"eightbyt"
    assert stream.wait_received(lambda data: pong in data), bytes(stream.received)
    stream.reset()
    client.wait_state("first", "running")
    client.delete("first")


def test_b16_split_head(client, api):
    api.exec_fault("split", split_head=True, times=None)
    client.create("split")
    assert client.exec("split", ["echo", "hi"])["stdout"] == "hi\n"
    client.delete("split")


def test_b06_v4_works_too(client, api):
    api.protocols = ("v4.channel.k8s.io",)
    client.create("old")
    assert client.exec("old", ["cat"], stdin="abc")["stdout"] == "abc"
    assert api.stream("old").protocol == "v4.channel.k8s.io"
    client.delete("old")


@pytest.mark.parametrize("protocol", [None, "channel.k8s.io", "v9.channel.k8s.io"])
def test_b06_an_unknown_protocol_is_not_spoken(client, api, protocol):
    fault = api.exec_fault("proto", protocol=protocol, times=3)
    client.create("proto", ready_timeout=60)
    assert fault.used == 3
    assert all(not stream.received_bytes for stream in fault.streams)
    assert client.exec("proto", ["true"])["exit_code"] == 0
    client.delete("proto")


# --- B45: the handshake is refused ------------------------------------------------------------------------------
NOT_FOUND = ('unable to upgrade connection: container not found ("sandbox")', "text/plain")


def as_status(code, message):
    return json.dumps({"kind": "Status", "status": "Failure", "message": message, "code": code}).encode()


@pytest.mark.parametrize("status, body, kind", [
    (400, as_status(400, "pod sandbox-hs does not have a host assigned"), "application/json"),
    (404, as_status(404, 'pods "sandbox-hs" not found'), "application/json"),
    (409, as_status(409, "conflict"), "application/json"),
    (429, as_status(429, "too many requests"), "application/json"),
    (500, NOT_FOUND[0].encode(), NOT_FOUND[1]),
    (500, b"x" * 100000, "text/html"),
    (503, b"<html>Bad gateway</html>", "text/html"),
    (301, b"", "text/plain"), (200, b"hello", "text/plain"),
])
def test_b45_refused_and_then_accepted(client, api, status, body, kind):
    """While the sandbox starts, a refusal is tried again; the sandbox becomes ready."""
    fault = api.exec_fault("hs", refuse=(status, body, kind), times=2)
    client.create("hs", ready_timeout=60)
    assert fault.used == 2
    client.delete("hs")


def test_b45_b43_unauthorized_once_and_for_good(client, api):
    unauthorized = (401, as_status(401, "Unauthorized"), "application/json")
    api.exec_fault("un", refuse=unauthorized, times=1)
    client.create("un")
    client.delete("un")
    api.exec_fault("un", refuse=unauthorized, times=None)
    client.create_problem(502, "backend_unauthorized", id="un")
    client.delete("un")


def test_b45_forbidden_is_said_at_once(client, api):
    message = 'pods "sandbox-no" is forbidden: User "u" cannot get resource "pods/exec" in API group ""'
    api.exec_fault("no", refuse=(403, as_status(403, message), "application/json"), times=None)
    problem = client.create_problem(502, "backend_forbidden", id="no")
    assert "pods/exec" in problem["detail"] and api.get("pods", "sandbox-no") is None
    client.delete("no")


def test_b45_a_long_refusal_is_quoted_in_part(client, api):
    api.exec_fault("long", refuse=(500, b"hush-hush " + b"y" * 100000, "text/plain"), times=None)
    problem = client.create_problem(504, "ready_timeout", id="long", ready_timeout=2, secrets=["hush-hush"])
    assert "hush" not in json.dumps(problem["detail"]) + client.request("GET", "/v1/sandboxes/long").text
    assert len(json.dumps({name: value for name, value in problem.items() if name != "headers"})) < 8192
    client.delete("long")


def test_b45_a_wrong_accept_key(client, api):
    fault = api.exec_fault("accept", accept="AAAAAAAAAAAAAAAAAAAAAAAAAAA=", times=2)
    client.create("accept", ready_timeout=60)
    assert fault.used == 2 and not any(stream.received_bytes for stream in fault.streams)
    client.delete("accept")


def test_b45_reset_instead_of_an_answer(client, api):
    fault = api.exec_fault("rst", reset=True, times=3)
    client.create("rst", ready_timeout=60)
    assert fault.used == 3
    client.delete("rst")


@pytest.mark.parametrize("refusal", [(500, NOT_FOUND[0].encode(), NOT_FOUND[1]),
                                     (404, as_status(404, 'pods "sandbox-box" not found'), "application/json")], ids=["500", "404"])
def test_b45_not_found_by_mistake(client, api, box, refusal):
    """A node that is restarting says so of a container that lives: the sandbox is there again by itself."""
    future = running(client, box, "while [ ! -e go ]; do sleep 0.02; done; exit 7")
    wait_process(api, box, "while")
    fault = api.exec_fault(box, refuse=refusal, times=1)
    api.stream(box).reset()
    wait_until(lambda: fault.used)
    client.put(box, "go", b"")
    assert future.result()["exit_code"] == 7
    assert client.sandbox(box)["state"] == "running"


def test_b45_container_gone_while_the_watch_is_deaf(client, api, box):
    """The refusal of the next handshake is the first to say it: the pod is looked at, and the command's result tells."""
    future = running(client, box, ["sleep", "600"])
    wait_process(api, box, "sleep 600")
    api.stall_watches()
    api.remove("pods", "sandbox-box")
    result = future.result()
    assert result["exit_code"] is None and result["error"]["code"] == "sandbox_gone", result
    api.stall_watches(False)


# --- B31: silence ------------------------------------------------------------------------------------------------------
def test_b31_pings_are_answered(client, api, box):
    stream = api.stream(box)
    assert stream.socket.ping(b"hello?")
    assert stream.socket.ping(b"")
    assert stream.socket.ping(b"x" * 125)


def test_b31_pings_are_answered_while_output_waits(server, client, api, box):
    """Even when the REST client does not read."""
    result = client.exec(box, ["head", "-c", "50000000", "/dev/zero"], max_output=0)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(f"GET /v1/sandboxes/{box}/execs/{result['id']}/output?stream=stdout HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert api.stream(box).socket.ping(b"still there?")


@pytest.mark.skipif(not SOAK, reason="takes two minutes: in the soak run")
def test_b31_an_idle_stream_is_kept_alive(client, api, box):
    """A proxy that drops what is silent for 30 s sees traffic."""
    stream = api.stream(box)
    stream.connection.idle_limit = 30
    assert client.exec(box, ["sleep", "120"], timeout_s=200)["exit_code"] == 0
    assert api.stream(box) is stream and not stream.connection.dead


@pytest.mark.skipif(not SOAK, reason="takes two minutes: in the soak run")
def test_b31_a_stream_that_falls_silent_is_given_up(client, api, box):
    stream = api.stream(box)
    future = running(client, box, ["sleep", "30"])
    wait_process(api, box, "sleep 30")
    stream.silence()
    assert future.result()["exit_code"] == 0
    assert api.stream(box) is not stream


def test_b02_unreachable_for_30_s_is_stream_lost(server, client, api):
    """Every way of breaking, in as many sandboxes at once; then the agent cannot be reached any more."""
    names = [f"lost-{index}" for index in range(4)]
    ways = [CUTS[how] for how in ("close 1000", "close 1011", "RST", "a status of success")]
    for name in names:
        client.create(name)
    futures = [running(client, name, "echo partial; exec sleep 601") for name in names]
    for name in names:
        wait_process(api, name, "sleep 601")
        record = client.get(f"/v1/sandboxes/{name}/execs")["items"][0]
        wait_until(lambda name=name, record=record: client.output(name, record["id"]).content == b"partial\n")
    for name, way in zip(names, ways):
        api.exec_fault(name, refuse=(503, b"no", "text/plain"), times=None)
        way(api.stream(name))
    for future in futures:
        result = future.result()
        assert result["exit_code"] is None and result["error"]["code"] == "stream_lost", result
        assert result["stdout"] == "partial\n"
    for name in names:
        client.delete(name)


# --- B38, B50: ends of the pod ----------------------------------------------------------------------------------------------
def test_b38_deleted_while_a_command_runs(client, api, box):
    future = running(client, box, "echo some; exec sleep 600")
    wait_process(api, box, "sleep 600")
    api.remove("pods", "sandbox-box")
    result = future.result()
    assert result["exit_code"] is None and result["error"]["code"] == "sandbox_gone" and result["stdout"] == "some\n"
    assert client.wait_state(box, "gone")["reason"] == "removed_externally"


def test_b38_evicted_while_the_socket_stays_open(client, api, box):
    client.request("POST", f"/v1/sandboxes/{box}/previews", (200, 201, 202), json={"port": 8000, "wait": False})
    future = running(client, box, ["sleep", "600"])
    wait_process(api, box, "sleep 600")
    pod = api.get("pods", "sandbox-box")
    message = 'Usage of EmptyDir volume "tmp" exceeds the limit "1Gi". '
    api.node.phase(pod, "Failed", "Evicted", message)
    result = future.result()
    assert result["error"]["code"] == "sandbox_gone" and result["exit_code"] is None
    assert "EmptyDir" in json.dumps(result["error"])
    record = client.wait_state(box, "failed")
    assert record["reason"] == "evicted" and message.strip() in record["message"]
    wait_until(lambda: api.sandbox_objects(box) == [], what="everything of it being removed")


def test_b38_pid_1_is_killed(client, api, box):
    future = running(client, box, ["sleep", "600"])
    wait_process(api, box, "sleep 600")
    os.kill(api.node.container(box).inner, 9)
    result = future.result()
    assert result["error"]["code"] == "sandbox_gone" and result["exit_code"] is None
    record = client.wait_state(box, "failed")
    assert record["reason"] == "container_exited" and "137" in record["message"]


def test_b38_oom_of_the_container(client, api, box):
    pod = api.get("pods", "sandbox-box")
    api.node.ended(pod, 137, "OOMKilled", api.node.container(box).id)
    assert client.wait_state(box, "failed")["reason"] == "oom_killed"


def test_b50_stuck_terminating(server, client, api):
    client.create("stuck")
    api.hold_terminating("stuck")
    begin = len(api.seen("delete", "pods"))
    thread_answer = running_delete(client, "stuck")
    api.wait_seen(begin + 1, verb="delete", kind="pods")
    wait_until(lambda: client.sandbox("stuck")["state"] == "deleting")
    client.exec_problem("stuck", ["true"], 410)
    assert [item["state"] for item in client.list() if item["id"] == "stuck"] == ["deleting"]
    client.create_problem(409, "already_exists", id="stuck")
    api.wait_seen(begin + 2, verb="delete", kind="pods")  # tried again, with a pause that grows
    deletes = api.seen("delete", "pods")[begin:]
    assert all(call.body["preconditions"]["uid"] and call.body["gracePeriodSeconds"] == 0 for call in deletes)
    api.release("stuck")
    assert thread_answer.result().status_code in (202, 204)
    client.wait_state("stuck", "gone")
    assert client.create("stuck")["state"] == "running"
    client.delete("stuck")


def running_delete(client, id):
    pool = ThreadPoolExecutor(1)
    future = pool.submit(client.request, "DELETE", f"/v1/sandboxes/{id}")
    pool.shutdown(wait=False)
    return future


@pytest.mark.parametrize("code, reason", [(404, "NotFound"), (409, "Conflict")])
def test_b50_gone_already_is_done(client, api, box, code, reason):
    def gone(server, connection, call):
        server.remove("pods", "sandbox-box")
        return False
    api.fault(gone, verb="delete", kind="pods")
    assert client.delete(box)


def test_b48_delete_refused_is_not_a_success(client, api):
    client.create("undead")
    fault = api.refuse(500, "etcd is slow", verb="delete", kind="pods")
    problem = client.problem("DELETE", "/v1/sandboxes/undead", 502)
    assert "etcd is slow" in problem["detail"] and fault.hits == 1
    assert client.sandbox("undead")["state"] == "deleting"
    client.wait_state("undead", "gone")  # the sweep tries again
    assert api.get("pods", "sandbox-undead") is None
    client.delete("undead")


# --- the watch -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["end", "410", "cut", "garbage", "error 500", "stall"])
def test_the_watch_breaks_and_nothing_is_missed(server, client, api, box, how):
    if how == "end":
        api.stop_watches()
    elif how == "410":
        api.store.compact()
        api.stop_watches()
    elif how == "cut":
        before = len(api.seen("watch"))
        api.cut(verb="watch", times=2)
        api.stop_watches()
        api.wait_seen(before + 2, verb="watch")
    elif how == "garbage":
        def garbage(_, connection, call):
            connection.begin_chunked()
            connection.send_chunk(b'{"type":"MODIFIED","object":{{{\n')
            connection.end_chunked()
            return True
        api.fault(garbage, verb="watch", kind="pods")
        api.stop_watches()
    elif how == "error 500":
        def error(_, connection, call):
            connection.begin_chunked()
            connection.send_chunk(b'{"type":"ERROR","object":{"kind":"Status","code":500,"message":"boom"}}\n')
            connection.end_chunked()
            return True
        api.fault(error, verb="watch", kind="pods")
        api.stop_watches()
    else:
        api.stall_watches()
        api.remove("pods", "sandbox-box")
        api.stall_watches(False)
    if api.get("pods", "sandbox-box"):
        api.remove("pods", "sandbox-box")
    assert client.wait_state(box, "gone")["reason"] == "removed_externally"
    assert client.request("GET", "/readyz").status_code in (200, 503)
    wait_until(lambda: client.request("GET", "/readyz").status_code == 200)


def test_an_expired_list_page_starts_again(fresh):
    server = fresh()
    api = server.api
    for index in range(1100):
        api.store.add("pods", {"metadata": {"name": f"other-{index}", "labels": {"app.kubernetes.io/managed-by": "podsandbox",
                      "podsandbox.dev/instance": "x", "podsandbox.dev/sandbox-id": f"o{index}"}}, "spec": {"containers": []}})

    def expired(srv, connection, call):
        if not call.request.param("continue"):
            return False
        raise Refused(410, "The provided continue parameter is too old")
    server.start()
    api.fault(expired, verb="list", kind="pods", times=2)
    page = server.client().get("/v1/admin/sandboxes?foreign=true")
    assert len(page["items"]) == 1100


# --- the API server is away -------------------------------------------------------------------------------------------------
def test_the_api_server_is_away_for_a_while(server, client, api, box):
    api.stop()
    wait_until(lambda: client.request("GET", "/readyz").status_code == 503, what="health saying it")
    problem = client.create_problem(503, "backend_unavailable", id="when-away")
    assert problem["retryable"] is True and problem["headers"]["Retry-After"]
    assert client.request("GET", "/healthz").status_code == 200
    assert client.sandbox(box)["id"] == box  # what is known is known
    api.start()
    wait_until(lambda: client.request("GET", "/readyz").status_code == 200, 60, "recovery by itself")
    wait_until(lambda: client.request("POST", f"/v1/sandboxes/{box}/execs", json={"cmd": ["true"]}).status_code == 200, 60)
    client.problem("GET", "/v1/sandboxes/when-away", 404)  # nothing half-created is left
    client.create("back")
    client.delete("back")


def test_a_command_goes_on_while_the_api_server_is_away(client, api, box):
    future = running(client, box, "echo a; while [ ! -e go ]; do sleep 0.02; done; echo b")
    wait_process(api, box, "while")
    api.stop()
    api.start()
    wait_until(lambda: client.request("PUT", client.file_url(box, "go"), data=b"").status_code in (200, 201), 60)
    assert future.result()["stdout"] == "a\nb\n"


def test_start_without_an_api_server(fresh):
    server = fresh()
    api = server.api
    api.stop()
    server.spawn()
    wait_until(lambda: server.answers("/healthz") == 200)
    assert server.answers("/readyz") == 503
    problem = server.client().create_problem(503, "backend_unavailable", id="early")
    assert problem["retryable"]
    api.start()
    server.wait_ready()
    server.client().create("early2")


# --- B43: credentials -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def rotating(fresh, tmp_path):
    """A server that signs in with a token file, as a ServiceAccount's: a link to a directory that is replaced."""
    def write(token):
        number = len(list(tmp_path.glob("..v*")))
        (tmp_path / f"..v{number}").mkdir()
        (tmp_path / f"..v{number}" / "token").write_text(token)
        os.symlink(f"..v{number}", tmp_path / "..new")
        os.rename(tmp_path / "..new", tmp_path / "..data")
    write("token-one\n")
    os.symlink("..data/token", tmp_path / "token")
    server = fresh()
    server.write_kubeconfig(user={"tokenFile": str(tmp_path / "token")})
    server.api.tokens = {"token-one"}
    server.start()
    server.write_token, server.token_path = write, tmp_path / "token"
    return server


def test_b43_rotation(rotating):
    client, api = rotating.client(), rotating.api
    client.create("rot")
    future = running(client, "rot", "while [ ! -e go ]; do sleep 0.02; done; echo kept")
    wait_process(api, "rot", "while")
    rotating.write_token("token-two\n")
    api.tokens = {"token-two"}
    client.create("rot2")  # one 401 at most, one re-read, one retry
    assert client.exec("rot2", ["true"])["exit_code"] == 0
    client.put("rot", "go", b"")
    assert future.result()["stdout"] == "kept\n"
    assert "token-two" not in rotating.log() and "token-one" not in rotating.log()


def test_b43_a_missing_or_half_written_file_keeps_the_old(rotating):
    client, api = rotating.client(), rotating.api
    rotating.write_token("")
    client.create("empty")
    os.unlink(rotating.token_path)
    client.create("missing")
    assert client.exec("missing", ["true"])["exit_code"] == 0
    assert api.tokens == {"token-one"}


def test_b43_a_permanent_401(rotating):
    client, api = rotating.client(), rotating.api
    client.create("before")
    api.tokens = {"other"}
    api.stop_watches()
    begin = len(api.calls)
    problem = client.create_problem(502, "backend_unauthorized", id="no")
    assert "token-one" not in json.dumps(str(problem))
    wait_until(lambda: client.request("GET", "/readyz").status_code == 503, what="health saying it")
    time.sleep(1)  # a hot loop would show
    assert len(api.calls) - begin < 100
    api.tokens = {"token-one"}
    wait_until(lambda: client.request("GET", "/readyz").status_code == 200, 90, "recovery")
    client.delete("no")


def test_b43_401_of_the_stream(rotating):
    client, api = rotating.client(), rotating.api
    client.create("stream")
    rotating.write_token("token-two")
    api.tokens = {"token-two"}
    api.stream("stream").reset()
    assert client.exec("stream", ["true"])["exit_code"] == 0
