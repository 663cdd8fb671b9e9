"""The docker driver when its engine misbehaves: B16, B17, B29, B30, cut streams and events, failing and slow pulls."""

import json
import threading

import pytest

import server as under_test
from docker_server import DockerServer
from fake_docker import RAW_200, Box, DockerEngine, ExecScript, Pull, framed, odd_writes, one_byte_writes, plain_200
from fake_http import Closed
from fake_tls import Authority, TlsFront
from server import SOAK, at_once, wait_until

OPTIONS = ("--reap-every", "1")


def ended(engine, server):
    try:
        server.end()
    finally:
        engine.close()


@pytest.fixture(scope="module")
def cloud(node_root, tmp_path_factory):
    engine = DockerEngine(node_root / "docker", under_test.AGENT)
    server = DockerServer(engine.url, tmp_path_factory.mktemp("docker"), OPTIONS).start()
    server.api = engine
    yield server
    ended(engine, server)


@pytest.fixture
def engine(server):
    return server.api


@pytest.fixture
def own(node_root, tmp_path, request):
    """own(options…): an engine and a server for this test, not started yet."""
    made = []

    def make(*options, address=None, env=None):
        engine = DockerEngine(node_root / f"{request.node.name[:40]}-{len(made)}", under_test.AGENT)
        server = DockerServer(address(engine) if address else engine.url, tmp_path / f"server-{len(made)}", (*OPTIONS, *options), env=env)
        made.append((engine, server))
        return engine, server
    yield make
    for pair in made:
        ended(*pair)


def works(client, id):
    result = client.exec(id, "echo out; echo err >&2; exit 3")
    assert (result["stdout"], result["stderr"], result["exit_code"], result["error"]) == ("out\n", "err\n", 3, None), result


# --- the stream -----------------------------------------------------------------------------------
AT_ONCE = framed(2, b"") + framed(2, b"noise on standard error")
STREAMS = {
    "frames in the write of the head": ExecScript(with_head=AT_ONCE),
    "a head of single bytes": ExecScript(split_head=True),
    "a head of single bytes, and frames": ExecScript(split_head=True, with_head=AT_ONCE),
    "200 and no upgrade": ExecScript(head=RAW_200),
    "200 with frames in the write": ExecScript(head=RAW_200, with_head=AT_ONCE),
    "half a frame's head in the write": ExecScript(with_head=b"\2\0\0", then=lambda stream: stream.connection.send(b"\0\0\0\0\1!")),
    "one byte a write": ExecScript(shape=one_byte_writes),
    "heads of frames cut 3|5": ExecScript(shape=odd_writes),
    "an empty frame before each": ExecScript(shape=lambda data: [framed(1, b""), data]),
    "as of standard input": ExecScript(shape=lambda data: [b"\0" + data[1:] if data[0] == 1 else data]),
    "words of the engine in between": ExecScript(shape=lambda data: [framed(3, b"a warning"), data]),
}


@pytest.mark.parametrize("case", STREAMS)
def test_b16_b29_not_a_byte_is_lost(client, engine, case):
    """However the engine cuts what it sends."""
    for _ in range(20 if SOAK else 2):
        engine.script_exec(STREAMS[case])
        client.create("cut-up")
        works(client, "cut-up")
        data = bytes(range(256)) * 1000
        client.put("cut-up", "data", data)
        assert client.read("cut-up", "data") == data
        client.delete("cut-up")
    assert not engine.exec_scripts


BROKEN = {
    "an unknown stream": b"\7\0\0\0\0\0\0\1x",
    "four gibibytes": b"\1\0\0\0\xff\xff\xff\xff",
    "a frame that is cut": b"\1\0\0\0\0\0\0\x10abc",
    "text": b"this is no stream of an exec",
    "nothing": b"",
}


@pytest.mark.parametrize("case", BROKEN)
def test_b29_a_broken_stream_is_made_again(client, engine, case):
    """Neither a hang nor a crash, and memory is not asked for by a length that somebody else writes."""
    before = len(engine.streams)
    engine.script_exec(ExecScript(run=False, with_head=BROKEN[case], then=lambda stream: stream.finish()), 2)
    client.create("twice-broken")
    works(client, "twice-broken")
    assert len(engine.streams) == before + 3
    client.delete("twice-broken")


def test_b29_an_upgrade_that_somebody_in_between_swallows(client, engine):
    engine.script_exec(ExecScript(run=False, head=plain_200(b"3\r\nabc\r\n")), 1000)
    problem = client.create_problem(504, "ready_timeout", id="swallowed", ready_timeout=2)
    assert problem["detail"]
    engine.clear()
    client.delete("swallowed")


def test_b30_a_runtime_that_cannot_start_the_agent(client, engine):
    """The engine says that in the stream, where the output would be; it is nobody's output."""
    words = b'OCI runtime exec failed: exec failed: unable to start container process: exec: "/opt/podsandbox/podsandbox-agent": permission denied: unknown\r\n'
    engine.script_exec(ExecScript(run=False, with_head=framed(1, words), then=lambda stream: stream.finish()), 1000)
    problem = client.create_problem(422, "container_start_failed", id="no-exec")
    assert "permission denied" in problem["detail"] and "OCI runtime" in problem["detail"]
    engine.clear()
    client.delete("no-exec")


@pytest.mark.parametrize("cut", ["reset", "finish"])
def test_a_cut_stream_loses_nothing(client, engine, cut):
    """A command runs on, and its output is whole."""
    client.create("cut")
    started = client.start("cut", "for i in $(seq 1 2000); do echo line $i; done; read -r _; echo end")
    wait_until(lambda: client.get(f"/v1/sandboxes/cut/execs/{started['id']}")["stdout_bytes"] > 1000, what="some output")
    for _ in range(3):
        count = len(engine.streams)
        getattr(engine.streams[-1], cut)()
        wait_until(lambda: len(engine.streams) > count, what="another stream")
    client.feed("cut", started["id"], b"go on\n")
    record = client.exec_wait("cut", started["id"])
    assert record["exit_code"] == 0 and record["error"] is None, record
    assert client.output("cut", started["id"]).text == "".join(f"line {i}\n" for i in range(1, 2001)) + "end\n"
    client.delete("cut")


def test_b30_a_container_that_has_ended_takes_no_exec(client, engine):
    """The answer is that the sandbox is gone, and never an exit code of 0."""
    client.create("dying")
    started = client.start("dying", ["sleep", "600"])
    engine.box("dying").container.kill()
    record = client.exec_wait("dying", started["id"])
    assert record["exit_code"] is None and record["error"]["code"] == "sandbox_gone", record
    record = client.wait_state("dying", "failed")
    assert record["reason"] == "container_exited" and "137" in record["message"]
    wait_until(lambda: engine.box("dying") is None, what="its container being removed")
    client.delete("dying")


def test_out_of_memory(client, engine):
    client.create("hungry")
    box = engine.box("hungry")
    box.state["OOMKilled"] = True
    box.container.kill()
    assert client.wait_state("hungry", "failed")["reason"] == "oom_killed"
    client.delete("hungry")


# --- creates ----------------------------------------------------------------------------------------
def test_the_body_of_a_create(client, engine):
    client.create("shape", env={"SECRET": "s3cr3t"}, secrets=["s3cr3t"], runtime_class="runsc", network="none")
    box = engine.box("shape")
    host = box.body["HostConfig"]
    assert host["CapDrop"] == ["ALL"] and host["ReadonlyRootfs"] and host["NetworkMode"] == "none" and host["Runtime"] == "runsc"
    assert "s3cr3t" not in json.dumps(box.body)
    assert box.agent == 0o755  # gVisor runs no file that its user cannot read
    assert set(client.get("/v1/capabilities")["networks"]) == {"internet", "none"}
    client.create("plain")
    assert engine.box("plain").agent == 0o711 and "Runtime" not in engine.box("plain").body["HostConfig"]
    assert engine.box("plain").body["HostConfig"]["NetworkMode"] == "podsandbox"
    client.delete("shape")
    client.delete("plain")


def test_a_looser_profile(own):
    """Where the operator allows it; the request of a user goes not with it."""
    engine, server = own("--allow-profiles", "compat")
    server.start()
    client = server.client()
    assert client.get("/v1/capabilities")["profiles"] == ["hardened", "compat"]
    record = client.create("loose", 202, profile="compat", wait=False)
    assert (record["profile"], record["run_as_user"], record["read_only_root"]) == ("compat", None, False)
    wait_until(lambda: engine.box("loose"), what="the container")
    body = engine.box("loose").body
    assert "User" not in body and "CapDrop" not in body["HostConfig"] and body["HostConfig"]["Tmpfs"] == {}
    assert body["HostConfig"]["SecurityOpt"] == ["no-new-privileges"] and not body["HostConfig"]["ReadonlyRootfs"]
    client.delete("loose")
    client.create_problem(400, "invalid_field", profile="other")
    client.create_problem(400, "invalid_field", profile="compat", run_as_user=1234)


def test_a_profile_that_is_not_allowed(client):
    assert client.get("/v1/capabilities")["profiles"] == ["hardened"]
    client.create_problem(422, "policy_denied", profile="compat")


def test_b17_a_create_whose_answer_is_lost(client, engine):
    """It is done once."""
    def swallow(_, request):
        box = Box(engine, request.param("name"), request.json())
        engine.boxes[box.id] = box
        raise Closed("without an answer")
    before = engine.count("POST", "/containers/create")
    engine.fault("POST", "/containers/create", swallow)
    client.create("unheard")
    works(client, "unheard")
    assert engine.count("POST", "/containers/create") == before + 1
    client.delete("unheard")


FAILURES = {
    "no room for the agent": ("PUT", "/archive", 500, "no space left on device", (502,), "backend_error"),
    "a start that fails": ("POST", "/start$", 500, "OCI runtime create failed: container_linux.go: starting container process caused: exec format error",
                           (422,), "container_start_failed"),
    "a start without a network": ("POST", "/containers/[^/]+/start", 404, "network podsandbox not found", (503,), "network_setup_failed"),
    "a refused create": ("POST", "/containers/create", 400, "invalid reference format", (422,), "invalid_image"),
    "an unknown runtime": ("POST", "/containers/create", 400, "Unknown runtime specified runsc", (422,), "runtime_class_missing"),
    "an engine in trouble": ("POST", "/containers/create", 500, "something went wrong", (502,), "backend_error"),
    "a plugin that says no": ("POST", "/containers/create", 403, "authorization denied by plugin", (502,), "backend_forbidden"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_what_fails_leaves_nothing(client, engine, case):
    method, pattern, status, words, wanted, code = FAILURES[case]
    engine.refuse(method, pattern, status, words)
    problem = client.create_problem(wanted, code, id="failing")
    assert words in problem["detail"] and problem["remediation"], problem
    assert engine.box("failing") is None and client.sandbox("failing")["state"] == "failed"
    client.delete("failing")
    client.create("failing")
    works(client, "failing")
    client.delete("failing")


def test_a_network_that_somebody_removed_is_made_again(client, engine):
    client.create("first")
    engine.networks.discard("podsandbox")
    client.create_problem(503, "network_setup_failed", id="between")
    client.create("second")
    for id in ("first", "between", "second"):
        client.delete(id)


def test_a_name_that_another_container_has(client, engine):
    """It is not touched."""
    foreign = Box(engine, "sandbox-taken", {"Image": "x", "Labels": {}})
    engine.boxes[foreign.id] = foreign
    client.create_problem(409, "already_exists", id="taken")
    client.request("DELETE", "/v1/sandboxes/taken")
    assert engine.boxes.pop(foreign.id) is foreign


def test_a_delete_that_the_engine_refuses_is_tried_again(client, engine):
    client.create("sticky")
    engine.refuse("DELETE", "/containers/", 500, "driver failed to remove root filesystem: device or resource busy")
    client.request("DELETE", "/v1/sandboxes/sticky", (202, 204, 502))
    wait_until(lambda: engine.box("sticky") is None, what="the container's end")
    client.delete("sticky")


def test_removed_by_somebody_else(client, engine):
    client.create("stolen")
    box = engine.boxes.pop(engine.box("stolen").id)
    box.remove()
    engine.event("destroy", box)
    wait_until(lambda: client.request("GET", "/v1/sandboxes/stolen").status_code == 410, what="its end being known")
    problem = client.problem("GET", "/v1/sandboxes/stolen", 410)
    assert problem["sandbox"]["reason"] == "removed_externally"


# --- images -------------------------------------------------------------------------------------------
def test_an_image_is_pulled_while_the_create_goes_on(client, engine):
    pull = Pull(engine)
    record = client.create("pulled", 202, image="localhost/big:2", wait=False)
    assert record["state"] == "creating"
    assert pull.begun.wait(30) and pull.image == "localhost/big:2"
    pull.say(status="Pulling from big", id="2")
    pull.say(status="Downloading", id="abc", progressDetail={"current": 1, "total": 2}, progress="[==>  ] 1B/2B")
    pull.end()
    assert client.wait_state("pulled", "running")["image"] == "localhost/big:2"
    works(client, "pulled")
    client.delete("pulled")


def test_an_error_inside_of_a_success(client, engine):
    """The answer was a 200 when the registry said no."""
    pull = Pull(engine)
    client.create("denied", 202, image="localhost/secret:1", wait=False)
    pull.say(status="Pulling from secret")
    pull.say(errorDetail={"message": "denied: requested access to the resource is denied"}, error="denied: requested access to the resource is denied")
    pull.end(here=False)
    record = client.wait_state("denied", "failed")
    assert record["reason"] == "image_pull_failed" and "requested access" in record["message"] and "localhost/secret:1" in record["message"]
    client.delete("denied")


def test_a_pull_that_is_cut(client, engine):
    """As if the engine were restarted: worth another try."""
    pull = Pull(engine)
    client.create("halved", 202, image="localhost/big:3", wait=False)
    pull.say(status="Downloading")
    pull.cut()
    record = client.wait_state("halved", "failed")
    assert record["reason"] == "backend_unavailable"
    client.delete("halved")


def test_what_a_pull_is_at_when_the_time_is_over(client, engine):
    pull = Pull(engine)
    client.create("slow", 202, image="localhost/slow:1", wait=False, ready_timeout=2)
    pull.say(status="Downloading", id="abcdef", progress="3MB/900MB")
    record = client.wait_state("slow", "failed")
    assert record["reason"] == "ready_timeout" and "Downloading abcdef 3MB/900MB" in record["message"], record
    pull.over.set()
    client.delete("slow")


def test_a_delete_does_not_wait_for_the_pull(client, engine):
    """And what was pulled for it makes no container."""
    pull = Pull(engine)
    client.create("unwanted", 202, image="localhost/big:4", wait=False)
    assert pull.begun.wait(30)
    client.delete("unwanted")
    before = engine.count("POST", "/containers/create")
    pull.say(status="Downloading")
    pull.end()
    again = client.create("unwanted", image="localhost/big:4")
    assert again["state"] == "running" and engine.count("POST", "/containers/create") == before + 1
    client.delete("unwanted")


def test_a_pull_that_never_ends_holds_up_nobody(client, engine):
    """More of them than there are threads for; the other sandboxes come and go."""
    pulls = [Pull(engine) for _ in range(12)]
    ids = [f"stuck-{i}" for i in range(12)]
    for i, id in enumerate(ids):
        client.create(id, 202, image=f"localhost/stuck:{i}", wait=False)
    assert pulls[0].begun.wait(30)
    client.create("lively")
    works(client, "lively")
    client.delete("lively")
    for id in ids:
        client.delete(id)
    for pull in pulls:
        pull.over.set()
    engine.clear()


def test_a_restart_during_a_pull(own):
    """The create is asked for again by the next server."""
    engine, server = own()
    server.start()
    pull = Pull(engine)
    server.client().create("later", 202, image="localhost/big:5", wait=False)
    assert pull.begun.wait(30)
    server.kill()
    pull.over.set()
    again = Pull(engine)
    server.start()
    assert again.begun.wait(30)
    again.end()
    assert server.client().wait_state("later", "running")["image"] == "localhost/big:5"
    server.client().delete("later")


def test_pull_policies(client, engine):
    before = engine.count("POST", "/images/create")
    problem = client.create_problem(502, "image_pull_failed", id="never", image="localhost/absent:1", image_pull_policy="Never")
    assert "No such image" in problem["detail"] and engine.count("POST", "/images/create") == before
    client.delete("never")
    pull = Pull(engine)
    client.create("always", 202, image_pull_policy="Always", wait=False)
    pull.begun.wait(30)
    pull.end()
    client.wait_state("always", "running")
    client.delete("always")


# --- the engine comes and goes ----------------------------------------------------------------------
def test_the_engine_is_down_and_comes_back(own):
    """Creates are refused as worth another try; what runs is found as it was."""
    engine, server = own()
    server.start()
    client = server.client()
    client.create("kept")
    engine.stop()
    problem = client.create_problem(503, "backend_unavailable", id="too-early")
    assert problem["retryable"] and "Retry-After" in problem["headers"] and "engine" in problem["detail"]
    engine.start()
    wait_until(lambda: client.request("POST", "/v1/sandboxes", json={"id": "afterwards", "image": client.image}).status_code == 201,
               what="the engine being found again")
    works(client, "kept")
    for id in ("kept", "afterwards"):
        client.delete(id)


def test_a_server_that_starts_before_its_engine(own):
    engine, server = own()
    engine.stop()
    server.spawn()
    wait_until(lambda: server.answers("/healthz") == 200, what="the server answering")
    engine.start()
    server.wait_ready()
    server.client().create("late")
    works(server.client(), "late")
    server.client().delete("late")


def test_a_gap_in_the_events(client, engine):
    """What happened meanwhile shows in the list that follows."""
    client.create("gone-meanwhile")
    client.create("ended-meanwhile")
    gone, over = engine.box("gone-meanwhile"), engine.box("ended-meanwhile")
    hold = threading.Event()

    def held(connection, request):
        hold.wait(30)
        engine.answer(connection, request)
    engine.fault("GET", "/info", held)
    engine.cut_events()
    del engine.boxes[gone.id]
    gone.remove()
    over.container.kill()
    hold.set()
    assert client.wait_state("gone-meanwhile", "gone")["reason"] == "removed_externally"
    assert client.wait_state("ended-meanwhile", "failed")["reason"] == "container_exited"
    client.delete("ended-meanwhile")


def test_events_are_followed_again_and_again(client, engine):
    """Cut a few times, without an outage being told."""
    client.create("watched")
    for _ in range(4):
        before = engine.count("GET", "/events")
        engine.cut_events()
        wait_until(lambda: engine.count("GET", "/events") > before, what="the events being followed again")
    engine.box("watched").container.kill()
    assert client.wait_state("watched", "failed")["reason"] == "container_exited"
    client.delete("watched")


def test_events_that_are_no_json(client, engine):
    client.create("noisy")
    with engine.state_lock:
        for connection in engine.watchers:
            connection.send_chunk(b"\n{\"Type\": 7}\nnot json at all\n[]\n")
    engine.box("noisy").container.kill()
    assert client.wait_state("noisy", "failed")["reason"] == "container_exited"
    client.delete("noisy")


@pytest.mark.parametrize("said, wanted", [(("1.41", "1.12"), "v1.41"), (("1.47", "1.24"), "v1.47"), (("1.99", "1.44"), "v1.47"),
                                          (("1.60", "1.52"), "v1.52")])
def test_the_version_is_agreed_on(own, said, wanted):
    engine, server = own()
    engine.api_version = said
    server.start()
    assert server.client().create("spoken")["state"] == "running"
    assert {request.target.split("/")[1] for request in engine.calls if not request.target.startswith("/version")} == {wanted}
    server.client().delete("spoken")


def test_an_engine_that_is_too_old(own):
    engine, server = own()
    engine.api_version = ("1.38", "1.12")
    server.spawn()
    wait_until(lambda: server.answers("/healthz") == 200, what="the server answering")
    problem = server.client().create_problem((502, 503), id="old")
    assert "1.38" in problem["detail"] or "looked up" in problem["detail"], problem
    wait_until(lambda: "needed is 1.40" in server.log(), what="the log saying why")


# --- who is whose -----------------------------------------------------------------------------------
def test_what_nobody_knows_is_removed_and_foreign_is_not(own):
    engine, server = own()
    labels = {"app.kubernetes.io/managed-by": "podsandbox", "podsandbox.dev/sandbox-id": "orphan", "podsandbox.dev/uid": "u",
              "podsandbox.dev/owner": "local"}
    body = {"Image": "x", "HostConfig": {}}
    ours = Box(engine, "sandbox-orphan", {**body, "Labels": {**labels, "podsandbox.dev/instance": server.instance}})
    theirs = Box(engine, "sandbox-orphan2", {**body, "Labels": {**labels, "podsandbox.dev/instance": "another"}})
    nobodys = Box(engine, "web", {**body, "Labels": {}})
    ours.state.update(Status="exited", ExitCode=1)
    for box in (ours, theirs, nobodys):
        engine.boxes[box.id] = box
    server.start()
    wait_until(lambda: ours.id not in engine.boxes, what="the orphan's end")
    server.client().post("/v1/admin/reap", {})
    assert theirs.id in engine.boxes and nobodys.id in engine.boxes
    items = server.client().get("/v1/admin/sandboxes?foreign=true")["items"]
    assert any(item["id"] == "orphan" for item in items), items


def test_creates_at_once(client, engine):
    ids = iter([f"many-{i}" for i in range(8)])
    made = at_once(8, lambda: client.create(next(ids))["id"])
    assert len(set(made)) == 8
    for id in made:
        works(client, id)
        client.delete(id)


# --- TLS ------------------------------------------------------------------------------------------------
@pytest.fixture
def secured(own, tmp_path):
    """(engine, server, front): an engine behind TLS that asks for a certificate."""
    authority = Authority(tmp_path / "authority")
    cert, key = authority.issue("engine", "IP:127.0.0.1")
    fronts, certificates = [], tmp_path / "certificates"
    certificates.mkdir()
    for name, path in zip(("cert.pem", "key.pem"), authority.issue("client", "DNS:client")):
        (certificates / name).write_bytes(path.read_bytes())
    (certificates / "ca.pem").write_bytes(authority.cert.read_bytes())

    def address(engine):
        fronts.append(TlsFront(engine.port, cert, key, authority))
        return f"tcp://127.0.0.1:{fronts[0].port}"
    engine, server = own(address=address, env={"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(certificates)})
    yield engine, server, fronts[0], certificates
    fronts[0].close()


def test_over_tls(secured):
    """Requests, the stream and its back-pressure."""
    _, server, front, _ = secured
    server.start()
    client = server.client()
    client.create("far")
    works(client, "far")
    data = bytes(range(256)) * 20000
    client.put("far", "data", data)
    assert client.read("far", "data") == data
    result = client.exec("far", ["sh", "-c", "head -c 3000000 /dev/zero; echo end >&2"], max_output=10)
    assert result["stdout_bytes"] == 3000000 and result["stderr"] == "end\n"
    front.end_all()
    works(client, "far")
    client.delete("far")


def test_tls_with_an_authority_that_is_not_ours(secured, tmp_path):
    _, server, front, certificates = secured
    (certificates / "ca.pem").write_bytes(Authority(tmp_path / "another").cert.read_bytes())
    server.spawn()
    wait_until(lambda: "the substrate does not answer" in server.log(), what="the log saying so")
    assert server.answers("/readyz") != 200 and front.refused > 0


@pytest.mark.parametrize("host", ["ssh://user@host", "tcp://", "unix://relative", "/var/run/docker.sock"])
def test_a_host_that_cannot_be(own, host):
    _, server = own(address=lambda _: host)
    server.spawn()
    assert server.process.wait(30) != 0 and "config_error" in server.log() and "must be" in server.log()
