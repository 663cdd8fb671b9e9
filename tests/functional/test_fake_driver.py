"""The fake driver: what tests of other code prepare, and what they find out. What both Python FakeSandboxes allow is here."""

import base64
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from attaching import Attached, terminal
from fake_apiserver import ApiServer
from fake_driver import FakeServer, answering, calls, reply, rules
from server import AGENT, POOL_THREADS, SOAK, Server, sanitized


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    server = FakeServer(tmp_path_factory.mktemp("fake")).start()
    yield server
    server.stop()


@pytest.fixture
def server(cloud):
    yield cloud
    assert cloud.process.poll() is None


@pytest.fixture
def client(server):
    client = server.client()
    for path in ("replies", "ids", "creates", "calls"):
        client.request("DELETE", f"/v1/fake/{path}", 204)
    return client


# --- starts and removals -------------------------------------------------------------------
def test_a_start_has_its_image_and_environment(client):
    record = client.create("started", image="python:3.12", env={"A": "1", "B": "x=y z"}, secrets=["one", "two"])
    assert record["state"] == "running"
    assert calls(client, "started") == [{"type": "start", "image": "python:3.12", "env": {"A": "1", "B": "x=y z"},
                                         "workdir": "/workspace", "secrets": 2, "owner": "local"}]
    client.delete("started")


def test_a_removal_is_remembered_once(client):
    client.create("removed")
    client.delete("removed")
    client.request("DELETE", "/v1/sandboxes/removed", 204)
    assert calls(client, "removed", "remove") == [{"type": "remove"}]
    assert client.problem("GET", "/v1/sandboxes/removed", 410, "gone")["sandbox"]["reason"] == "deleted"
    assert client.create("removed")["state"] == "running"  # the id is free again
    client.delete("removed")


def test_secrets_are_counted_and_never_shown(client):
    client.create("secretive", secrets=["hunter2-hunter2"])
    client.request("POST", "/v1/sandboxes/secretive/secrets", 204, json={"values": ["tok-1234567", "tok-7654321"]})
    reply(client, {}, {"stdout": "hunter2-hunter2 and tok-7654321\n"})
    assert client.exec("secretive", ["env"])["stdout"] == "*** and ***\n"
    assert {"type": "secrets", "count": 2} in calls(client, "secretive")
    text = client.request("GET", "/v1/fake/calls", 200).text
    assert "hunter2" not in text and "tok-" not in text
    client.delete("secretive")


def test_prepared_ids_are_taken_by_creates_without_one(client):
    client.request("PUT", "/v1/fake/ids", 200, json={"ids": ["first-1", "second-2"]})
    client.create("named")
    assert client.post("/v1/sandboxes?dry_run=true", {"image": "x"}, 200)["dry_run"]
    assert client.get("/v1/fake/ids") == {"ids": ["first-1", "second-2"]}
    assert [client.create()["id"], client.create()["id"]] == ["first-1", "second-2"]
    last = client.create()["id"]
    assert last.startswith("run-")
    for id in ("named", "first-1", "second-2", last):
        client.delete(id)


CREATE_FAILURES = {"image_pull_failed": 502, "invalid_image": 422, "quota_exceeded": (403, 409, 429, 503), "unschedulable": 503,
                   "admission_denied": (403, 422), "container_start_failed": (422, 502), "ready_timeout": 504}


@pytest.mark.parametrize("code,status", CREATE_FAILURES.items())
def test_a_create_fails_as_it_is_told(client, code, status):
    client.request("PUT", "/v1/fake/creates", 200, json={"creates": [{"code": code, "message": "because: x"}]})
    problem = client.create_problem(status, code, id="failing")
    assert problem["category"] == "provision_error" and problem["detail"].endswith("because: x"), problem
    record = client.sandbox("failing")
    assert (record["state"], record["reason"]) == ("failed", code) and "because: x" in record["message"]
    client.exec_problem("failing", ["true"], 410)
    assert client.get("/v1/fake/creates") == {"creates": []}
    assert client.create("failing")["state"] == "running"  # used up
    client.delete("failing")


def test_creates_fail_in_their_order_and_by_id(client):
    left = [{"sandbox": "b", "code": "unschedulable"}, {"code": "invalid_image"}, {"sandbox": "a", "code": "quota_exceeded", "message": "later"}]
    assert client.request("PUT", "/v1/fake/creates", 200, json={"creates": left}).json() == {"creates": left}
    assert client.post("/v1/sandboxes?dry_run=true", {"image": "x"}, 200)["dry_run"]
    client.create_problem(422, "invalid_image", id="a")
    client.create_problem(503, "unschedulable", id="b")
    assert client.get("/v1/fake/creates") == {"creates": left[2:]}
    client.create("b")
    client.request("DELETE", "/v1/fake/creates", 204)
    client.create("a")
    for id in ("a", "b"):
        client.delete(id)


@pytest.mark.parametrize("body", [{}, {"creates": {}}, {"creates": [{}]}, {"creates": [{"code": "not_found"}]}, {"creates": [{"code": "x"}]},
                                  {"creates": [{"code": "unschedulable", "sandbox": ""}]}, {"creates": [{"code": "unschedulable", "why": "x"}]},
                                  {"creates": [{"code": "unschedulable", "message": "x" * 1025}]}, {"creates": [], "more": 1}, [1]])
def test_creates_that_cannot_be_told(client, body):
    client.request("PUT", "/v1/fake/creates", 200, json={"creates": [{"code": "unschedulable"}]})
    client.problem("PUT", "/v1/fake/creates", 400, json=body)
    assert client.get("/v1/fake/creates") == {"creates": [{"code": "unschedulable"}]}  # as before
    client.request("DELETE", "/v1/fake/creates", 204)


def test_a_sandbox_ends_at_its_time(client):
    client.create("short", ttl=1)
    record = client.wait_state("short", "gone")
    assert record["reason"] == "ttl"
    assert "deadline" in [call["type"] for call in calls(client, "short")]


def test_deadlines_can_be_moved_in_any_order(client):
    for id, ttl in (("late", 3600), ("second", 2), ("renewed", 2), ("first", 1)):
        client.create(id, ttl=ttl)
    client.request("PATCH", "/v1/sandboxes/renewed", 200, json={"ttl": 1800})
    client.request("PATCH", "/v1/sandboxes/late", 200, json={"ttl": 1})
    for id in ("late", "first", "second"):
        assert client.wait_state(id, "gone")["reason"] == "ttl"
    assert client.sandbox("renewed")["state"] == "running"
    ended = [call["sandbox"] for call in client.get("/v1/fake/calls?type=deadline")["items"]]
    assert sorted(ended[:2]) == ["first", "late"] and ended[2:] == ["second"]
    client.delete("renewed")


# --- commands -----------------------------------------------------------------------------------
@pytest.fixture
def box(client):
    client.create("box")
    client.request("DELETE", "/v1/fake/calls", 204)
    yield "box"
    client.delete("box")


def test_a_command_without_a_rule_ends_well(client, box):
    result = client.exec(box, ["make", "all"])
    assert (result["exit_code"], result["stdout"], result["stderr"], result["error"]) == (0, "", "", None)


def test_every_field_of_a_command_is_remembered(client, box):
    client.exec(box, ["cat", "-n"], env={"X": "y"}, workdir="/srv/app", timeout=7.5, stdin="hello\n")
    client.exec(box, ["true"])
    assert calls(client, box) == [
        {"type": "exec", "exec": 1, "cmd": ["cat", "-n"], "env": {"X": "y"}, "workdir": "/srv/app", "timeout": 7.5,
         "stdin": "hello\n", "stdin_encoding": "utf-8", "stdin_bytes": 6},
        {"type": "exec", "exec": 2, "cmd": ["true"], "env": {}, "workdir": "/workspace", "timeout": 600, "stdin": None}]


@pytest.mark.parametrize("data", [b"", b"\xff\x00\xfe", "grüße".encode(), os.urandom(3 << 20)], ids=["none", "binary", "utf8", "large"])
def test_the_whole_input_is_taken(client, box, data):
    number = client.start(box, ["sort"])["id"]
    client.request("PUT", f"/v1/sandboxes/{box}/execs/{number}/stdin", (200, 204), data=data)
    assert client.exec_wait(box, number)["exit_code"] == 0
    call, = calls(client, box)
    assert call["stdin_bytes"] == len(data)
    shown = base64.b64decode(call["stdin"]) if call["stdin_encoding"] == "base64" else call["stdin"].encode()
    assert shown == data[:256 * 1024]


@pytest.mark.parametrize("match,hits,misses", [
    ({"argv": ["ls", "-l"]}, [["ls", "-l"]], [["ls"], ["ls", "-l", "x"], ["ls", "-la"]]),
    ({"prefix": ["git", "push"]}, [["git", "push"], ["git", "push", "-f"]], [["git"], ["git", "pull"], ["gitpush"]]),
    ({"regex": "^pip3? install .*requests"}, [["pip", "install", "requests"], ["pip3", "install", "-U", "requests"]],
     [["pip", "download", "requests"], ["x", "pip", "install", "requests"]]),
    ({"regex": "a b"}, [["xa", "bx"], ["a b"]], [["ab"]]),
    ({}, [["anything"]], []),
])
def test_rules_match_commands(client, box, match, hits, misses):
    reply(client, match, {"exit_code": 9})
    assert [client.exec(box, cmd)["exit_code"] for cmd in hits] == [9] * len(hits)
    assert [client.exec(box, cmd)["exit_code"] for cmd in misses] == [0] * len(misses)
    assert client.get("/v1/fake/replies")["rules"][0]["used"] == len(hits)


def test_the_first_rule_that_fits_counts(client, box):
    client.create("other")
    rules(client, {"match": {"prefix": ["x"]}, "sandbox": "other", "replies": [{"exit_code": 1}]},
          {"match": {"prefix": ["x"]}, "replies": [{"exit_code": 2}]}, {"replies": [{"exit_code": 3}]})
    assert [client.exec("other", ["x"])["exit_code"], client.exec(box, ["x"])["exit_code"],
            client.exec(box, ["y"])["exit_code"]] == [1, 2, 3]
    client.delete("other")


@pytest.mark.parametrize("repeat,codes", [(None, [1, 2, 2, 2, 2]), ("last", [1, 2, 2, 2, 2]), ("all", [1, 2, 1, 2, 1]),
                                          ("none", [1, 2, 0, 0, 0])])
def test_replies_come_in_their_order(client, box, repeat, codes):
    reply(client, {}, {"exit_code": 1}, {"exit_code": 2}, **({"repeat": repeat} if repeat else {}))
    assert [client.exec(box, ["x"])["exit_code"] for _ in codes] == codes


def test_output_is_exact(client, box):
    out, err = os.urandom(2 << 20), b"line\n" * 100000
    reply(client, {}, {"stdout": base64.b64encode(out).decode(), "stdout_encoding": "base64", "stderr": err.decode()})
    number = client.exec(box, ["x"])["id"]
    assert client.output(box, number).content == out
    assert client.output(box, number, "stderr").content == err


@pytest.mark.parametrize("given,seen", [
    ({"signal": "KILL"}, {"signal": "KILL", "exit_code": None}),
    ({"signal": "15"}, {"signal": "TERM", "exit_code": None}),
    ({"oom_killed": True, "signal": "KILL"}, {"oom_killed": True}),
    ({"failure": {"code": "command_not_found", "message": "no rustc"}},
     {"exit_code": 127, "error": {"code": "command_not_found", "message": "no rustc"}}),
    ({"failure": {"code": "not_executable"}}, {"exit_code": 126}),
    ({"failure": {"code": "timeout"}, "stdout": "so far"}, {"timed_out": True, "exit_code": None, "stdout": "so far"}),
    ({"failure": {"code": "exec_failed", "message": "no more processes"}},
     {"exit_code": None, "error": {"code": "exec_failed", "message": "no more processes"}}),
    ({"failure": {"code": "oom_killed"}}, {"oom_killed": True, "signal": "KILL", "exit_code": None}),
])
def test_a_command_can_end_in_every_way(client, box, given, seen):
    reply(client, {}, given)
    result = client.exec(box, ["x"])
    assert {name: result[name] for name in seen} == seen


@pytest.mark.parametrize("code,status", [("workdir_not_found", 422), ("argument_too_long", 413), ("busy", 503)])
def test_a_command_can_be_refused(client, box, code, status):
    reply(client, {}, {"failure": {"code": code, "message": "made up"}})
    assert "made up" in client.exec_problem(box, ["x"], status, code)["detail"]


def test_the_sandbox_can_be_lost_with_a_command(client):
    client.create("doomed")
    reply(client, {"argv": ["boom"]}, {"failure": {"code": "sandbox_gone", "message": "the node burnt down"}})
    result = client.exec("doomed", ["boom"])
    assert result["exit_code"] is None and result["error"]["code"] == "sandbox_gone"
    assert client.wait_state("doomed", "failed")["reason"] == "container_exited"
    client.delete("doomed")


def test_a_delay_is_waited_for_and_the_timeout_counts(client, box):
    reply(client, {}, {"delay": 0.3, "stdout": "done"})
    result = client.exec(box, ["slow"])
    assert result["stdout"] == "done" and result["duration"] >= 0.29
    reply(client, {}, {"delay": 3600, "stdout": "never"})
    result = client.exec(box, ["slower"], timeout=0.2)
    assert (result["timed_out"], result["exit_code"], result["stdout"]) == (True, None, "")
    assert result["error"]["code"] == "timeout"


def test_running_commands_end_with_their_sandbox(client):
    client.create("ending")
    reply(client, {}, {"delay": 3600})
    number = client.start("ending", ["sleep"])["id"]
    client.feed("ending", number, b"")
    client.delete("ending")
    record = client.get(f"/v1/sandboxes/ending/execs/{number}")
    assert record["state"] == "exited" and record["exit_code"] is None and record["error"]["code"] == "sandbox_gone"


def test_a_detached_command_ends_as_any_other(client, box):
    number = client.post(f"/v1/sandboxes/{box}/execs", {"cmd": ["serve"], "detach": True}, 202)["id"]
    assert client.exec_wait(box, number)["exit_code"] == 0
    assert calls(client, box)[0]["timeout"] is None


def test_a_callback_answers(client, box):
    def answer(call):
        return 200, {"exit_code": len(call["cmd"]), "stdout": call.get("stdin") or "nothing"}

    with answering(answer) as (url, came):
        rules(client, {"callback": url})
        first = client.exec(box, ["a", "b"], env={"K": "v"}, stdin="input")
        second = client.exec(box, ["a"])
    assert (first["exit_code"], first["stdout"]) == (2, "input")
    assert (second["exit_code"], second["stdout"]) == (1, "nothing")
    assert {name: came[0][name] for name in ("sandbox", "exec", "cmd", "env", "workdir", "stdin")} == {
        "sandbox": box, "exec": 1, "cmd": ["a", "b"], "env": {"K": "v"}, "workdir": "/workspace", "stdin": "input"}


@pytest.mark.parametrize("status,body,why", [
    (500, {}, "status 500"), (200, b"not json", "JSON"), (200, {"exit_code": 999}, "exit_code"),
    (200, {"nonsense": 1}, "nonsense"), (200, b"[]", "object")])
def test_a_callback_that_answers_nonsense_is_a_failure(client, box, status, body, why):
    with answering(lambda _: (status, body)) as (url, _):
        rules(client, {"callback": url})
        error = client.exec(box, ["a"])["error"]
    assert error["code"] == "exec_failed" and why in error["message"]


def test_a_callback_that_nobody_answers_is_a_failure(client, box):
    with answering(lambda _: (200, {})) as (url, _):
        pass
    rules(client, {"callback": url})
    assert client.exec(box, ["a"])["error"]["code"] == "exec_failed"


def test_a_callback_that_takes_its_time_counts_for_the_timeout(client, box):
    asked, go_on = threading.Event(), threading.Event()

    def answer(_):
        asked.set()
        assert go_on.wait(60)
        return 200, {"exit_code": 4}

    with answering(answer) as (url, _):
        rules(client, {"callback": url})
        result = client.exec(box, ["a"], timeout=0.2)
        assert asked.wait(60) and result["timed_out"] and result["error"]["code"] == "timeout"
        client.create("leaving")
        asked.clear()
        number = client.start("leaving", ["a"])["id"]
        client.feed("leaving", number, b"")
        assert asked.wait(60)
        client.delete("leaving")  # before the answer
        go_on.set()
        assert client.exec(box, ["b"])["exit_code"] == 4


# --- bad input ------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule,name", [
    ({}, "rules[0]"),
    ({"replies": []}, "rules[0].replies"),
    ({"replies": [{}], "callback": "http://x/"}, "rules[0]"),
    ({"callback": "ftp://x/"}, "rules[0].callback"),
    ({"replies": [{"exit_code": 256}]}, "rules[0].replies[0].exit_code"),
    ({"replies": [{"exit_code": 1, "signal": "KILL"}]}, "rules[0].replies[0].exit_code"),
    ({"replies": [{"signal": "NOPE"}]}, "rules[0].replies[0].signal"),
    ({"replies": [{"stdout": "!", "stdout_encoding": "base64"}]}, "rules[0].replies[0].stdout"),
    ({"replies": [{"delay": -1}]}, "rules[0].replies[0].delay"),
    ({"replies": [{"failure": {"code": "ttl"}}]}, "rules[0].replies[0].failure.code"),
    ({"replies": [{"what": 1}]}, "rules[0].replies[0].what"),
    ({"replies": [{}], "repeat": "twice"}, "rules[0].repeat"),
    ({"replies": [{}], "match": {"regex": "("}}, "rules[0].match.regex"),
    ({"replies": [{}], "match": {"regex": "(a)\\1"}}, "rules[0].match.regex"),
    ({"replies": [{}], "match": {"regex": "((a{99}){99}){99}"}}, "rules[0].match.regex"),
    ({"replies": [{}], "match": {"regex": "x" * 1025}}, "rules[0].match.regex"),
    ({"replies": [{}], "match": {"argv": []}}, "rules[0].match.argv"),
    ({"replies": [{}], "match": {"argv": ["a"], "prefix": ["a"]}}, "rules[0].match"),
])
def test_a_bad_rule_is_refused_by_name_and_changes_nothing(client, rule, name):
    before = reply(client, {"argv": ["kept"]}, {"exit_code": 4})
    problem = client.problem("PUT", "/v1/fake/replies", 400, "invalid_field", json={"rules": [rule]})
    assert f"'{name}'" in problem["detail"]
    assert client.get("/v1/fake/replies")["rules"] == before


@pytest.mark.parametrize("path,body", [("replies", {}), ("replies", {"rules": 3}), ("ids", {"ids": ["Not An Id"]}),
                                       ("ids", {"ids": [1]}), ("ids", {"more": []})])
def test_a_bad_body_is_refused(client, path, body):
    client.problem("PUT", f"/v1/fake/{path}", 400, "invalid_field", json=body)


def test_calls_come_in_pages(client, box):
    for i in range(5):
        client.exec(box, ["n", str(i)])
    page = client.get(f"/v1/fake/calls?sandbox={box}&limit=2")
    assert [call["cmd"][1] for call in page["items"]] == ["0", "1"] and page["next"] == page["items"][-1]["number"]
    rest = client.get(f"/v1/fake/calls?sandbox={box}&after={page['next']}")
    assert [call["cmd"][1] for call in rest["items"]] == ["2", "3", "4"] and rest["next"] is None
    client.problem("GET", "/v1/fake/calls?limit=501", 400)
    client.problem("GET", "/v1/fake/calls?what=1", 400)


# --- around it ------------------------------------------------------------------------------------
def test_no_process_is_started(server, client, box):
    for _ in range(20):
        client.exec(box, ["sh", "-c", "sleep 1"])
    pid = server.pid()
    children = [Path(f"/proc/{pid}/task/{task}/children").read_text() for task in os.listdir(f"/proc/{pid}/task")]
    assert "".join(children) == ""


def test_many_sandboxes_are_cheap(tmp_path):
    """10,000 with PODSANDBOX_SOAK=1: at most 20 KiB of memory each, and no descriptor or thread."""
    count = 10000 if SOAK else 1000
    server = FakeServer(tmp_path, ("--max-sandboxes", str(count))).start()
    try:
        client = server.client()
        for id in ("warm-1", "warm-2"):
            client.create(id)
            client.delete(id)
        before = server.usage()
        client.request("PUT", "/v1/fake/ids", 200, json={"ids": [f"many-{i}" for i in range(count)]})

        def create(share):
            own = server.client()
            for _ in range(share):
                own.create(env={"A": "1"})
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(create, [count // 8] * 8))
        after = server.usage()
        assert client.get("/v1/admin/stats")["sandboxes"]["running"] == count
        assert len(calls(client, type="start")) == count + 2
        each = (after["rss"] - before["rss"]) / count
        print(f"{each:.1f} KiB a sandbox")
        if not sanitized():
            assert each <= 20
        assert after["threads"] <= before["threads"] + POOL_THREADS
        assert after["fds"] <= before["fds"] + 16  # connections of the clients
        for id in ("many-0", f"many-{count - 1}"):
            assert client.exec(id, ["true"])["exit_code"] == 0
    finally:
        server.stop()


def test_only_an_admin_may_use_it(tmp_path):
    server = FakeServer(tmp_path, keys={"root-key": ("ops", "admin"), "user-key": ("alice", "user")}).start()
    try:
        for method, path in [("GET", "calls"), ("DELETE", "calls"), ("GET", "replies"), ("PUT", "ids")]:
            server.client("user-key").problem(method, f"/v1/fake/{path}", 403, "forbidden")
        server.client("user-key").create("hers")
        assert calls(server.client("root-key"), "hers")[0]["owner"] == "alice"
    finally:
        server.stop()


def test_other_drivers_do_not_have_it(node_root, tmp_path):
    api = ApiServer(node_root / "not-fake", AGENT)
    server = Server(api, tmp_path).start()
    try:
        for method, path in [("GET", "calls"), ("DELETE", "calls"), ("PUT", "replies"), ("GET", "files"), ("PUT", "ids")]:
            body = {"json": {}} if method == "PUT" else {}
            problem = server.client().problem(method, f"/v1/fake/{path}", 404, "fake_only", **body)
            assert "kubernetes" in problem["detail"] and "--driver fake" in problem["remediation"]
    finally:
        server.stop()
        api.close()


def test_sandboxes_are_lost_with_the_server(tmp_path):
    server = FakeServer(tmp_path).start()
    client = server.client()
    try:
        client.create("mine")
        server.kill()
        server.start()
        record = client.wait_state("mine", "gone")
        assert record["reason"] == "lost"
        assert client.create("mine")["state"] == "running"
    finally:
        server.stop()


# --- terminals -----------------------------------------------------------------------------
def test_a_terminal_shows_what_was_prepared(client):
    client.create("terminal")
    reply(client, {}, {"stdout": "out\r\n", "stderr": "err\r\n", "exit_code": 3, "delay": 0.3})
    number = terminal(client, "terminal", ["htop"], columns=100, rows=30)
    with Attached(client, "terminal", number) as me:
        assert me.started["tty"] and (me.started["cols"], me.started["rows"]) == (100, 30)
        me.type("typed")
        me.resize(90, 20)
        assert me.told("resized") == {"type": "resized", "cols": 90, "rows": 20}
        assert me.end()["exit_code"] == 3 and bytes(me.out) == b"out\r\nerr\r\n" and not me.err
    assert calls(client, "terminal", "exec")[0]["stdin"] == "typed"
    record = client.get(f"/v1/sandboxes/terminal/execs/{number}")
    assert record["tty"] and (record["cols"], record["rows"]) == (90, 20)
    client.delete("terminal")
