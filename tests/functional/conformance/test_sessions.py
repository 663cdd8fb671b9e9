"""Shell sessions: what a text does to its shell stays, and nothing that it does wedges one."""

import base64
import time

import pytest

from events import TYPES, Events
from server import wait_until


class Session:
    def __init__(self, client, box, **body):
        self.client, self.box = client, box
        self.record = client.post(f"/v1/sandboxes/{box}/sessions", body, expect=201)
        self.id = self.record["id"]
        self.at = f"/v1/sandboxes/{box}/sessions/{self.id}"

    def run(self, command, expect=200, **body):
        return self.client.post(f"{self.at}/runs", {"command": command, **body}, expect=expect)

    def problem(self, command, status, code, **body):
        return self.client.problem("POST", f"{self.at}/runs", status, code, json={"command": command, **body})

    def out(self, command, **body):
        result = self.run(command, **body)
        assert result["error"] is None and result["session_ended"] is False, result
        return result["stdout"]

    def get(self):
        return self.client.get(self.at)

    def end(self):
        self.client.request("DELETE", f"{self.at}?grace=0.2", 204)

    def is_alive(self):
        assert self.run("echo alive")["stdout"] == "alive\n"
        assert self.get()["state"] == "idle"


@pytest.fixture(params=["sh", "bash", "/workspace/ash"])
def shell(request, client, box):
    if request.param == "/workspace/ash" and client.exec(box, "ln -sfn $(command -v busybox) ash")["exit_code"]:
        pytest.skip("the image has no busybox")
    if client.exec(box, ["sh", "-c", "command -v $0", request.param])["exit_code"]:
        pytest.skip(f"the image has no {request.param}")
    return request.param


@pytest.fixture
def session(client, box, shell):
    session = Session(client, box, shell=shell)
    yield session
    session.end()


@pytest.fixture
def plain(client, box):
    session = Session(client, box)
    yield session
    session.end()


def processes(client, box, mark):
    """Of them, those whose command line has MARK in it. The one that looks has it not."""
    script = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -q \"[${MARK%${MARK#?}}]${MARK#?}\" && echo ${p#/proc/}; done; true"
    return client.exec(box, ["sh", "-c", script], env={"MARK": mark})["stdout"].split()


# --- the life of one


@pytest.mark.needs("programs")
def test_a_session_begins_and_ends(client, box, shell):
    session = Session(client, box, shell=shell, workdir="/tmp", env={"GREETING": "good day"}, timeout=600)
    record = session.record
    assert {name: record[name] for name in ("state", "shell", "workdir", "cwd", "timeout", "ended", "exit_code", "error")} == {
        "state": "idle", "shell": shell, "workdir": "/tmp", "cwd": "/tmp", "timeout": 600, "ended": None, "exit_code": None, "error": None}
    assert session.out('echo "$GREETING"; pwd') == "good day\n/tmp\n"
    assert session.get() == record
    assert record in client.get(f"/v1/sandboxes/{box}/sessions")["items"]
    session.end()
    session.end()
    ended = session.get()
    assert ended["state"] == "ended" and ended["ended"] is not None
    session.problem("true", 409, "session_ended")
    wait_until(lambda: session.get() in client.get(f"/v1/sandboxes/{box}/sessions")["items"], what="the list telling the same")


def test_what_is_no_session(client, box):
    at = f"/v1/sandboxes/{box}"
    number = client.exec(box, ["true"])["id"]
    for wrong in (number, 999999):
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/runs")):
            body = {"json": {"command": "true"}} if method == "POST" else {}
            client.problem(method, f"{at}/sessions/{wrong}{path}", 404, "not_found", **body)
    for body in ({"shell": "python3"}, {"shell": "./sh"}, {"shell": ""}, {"timeout": 0}, {"tty": True}, {"env": {"A=B": "x"}}):
        client.problem("POST", f"{at}/sessions", 400, "invalid_field", json=body)
    session = Session(client, box)
    for body in ({}, {"command": 1}, {"command": "x", "cmd": ["x"]}, {"command": "x", "env": {}}, {"command": "x", "timeout": 0},
                 {"command": "x" * (1024 * 1024 + 1)}):
        client.problem("POST", f"{session.at}/runs", 400, "invalid_field", json=body)
    session.end()


@pytest.mark.needs("programs")
def test_an_image_without_the_shell(client, box):
    for shell in ("/nowhere/bash", "/workspace/dash"):
        client.exec(box, ["sh", "-c", "mkdir -p /workspace/dash"])
        problem = client.problem("POST", f"/v1/sandboxes/{box}/sessions", 422, "shell_not_found", json={"shell": shell})
        assert problem["remediation"]
    client.problem("POST", f"/v1/sandboxes/{box}/sessions", 422, "workdir_not_found", json={"workdir": "/nowhere"})


@pytest.mark.needs("programs")
def test_a_program_that_is_no_shell(client, box):
    client.put(box, "sh", b"#!/bin/sh\nexit 9\n", more="&mode=0755")
    client.problem("POST", f"/v1/sandboxes/{box}/sessions", 502, "exec_failed", json={"shell": "/workspace/sh"})


def test_the_number_of_sessions_is_limited(client):
    box = client.create("many-sessions")["id"]
    sessions = [Session(client, box) for _ in range(32)]
    client.problem("POST", f"/v1/sandboxes/{box}/sessions", 409, "session_limit", json={})
    sessions[0].end()
    Session(client, box)
    page = client.get(f"/v1/sandboxes/{box}/sessions?limit=20")
    rest = client.get(f"/v1/sandboxes/{box}/sessions?limit=20&before={page['next']}")
    ids = [item["id"] for item in page["items"] + rest["items"]]
    assert len(ids) == 33 and ids == sorted(ids, reverse=True) and rest["next"] is None
    client.delete(box)
    assert client.problem("GET", f"/v1/sandboxes/{box}/sessions/{sessions[1].id}x", 404) or True


@pytest.mark.needs("programs")
def test_sessions_end_with_their_sandbox(client):
    box = client.create("ending")["id"]
    session = Session(client, box)
    client.delete(box)
    assert client.get(session.at)["state"] == "ended"
    session.problem("true", 410, "gone")


@pytest.mark.needs("programs")
def test_an_idle_session_ends(client, box):
    session = Session(client, box, timeout=0.5)
    assert session.run("sleep 1; echo done")["stdout"] == "done\n"  # it is not idle meanwhile
    wait_until(lambda: session.get()["state"] == "ended", what="the idle session's end")
    assert session.get()["error"]["code"] == "timeout"
    session.problem("true", 409, "session_ended")


@pytest.mark.needs("programs")
def test_the_end_takes_the_whole_tree(client, box, shell):
    session = Session(client, box, shell=shell)
    session.run("(trap '' TERM; exec sleep 7001) & setsid sleep 7001 & true")
    number = session.run("trap '' TERM HUP; sleep 7001", 202, detach=True)["id"]
    wait_until(lambda: len(processes(client, box, "sleep 7001")) == 3, what="the processes")
    session.end()
    assert processes(client, box, "sleep 7001") == []
    result = client.exec_wait(box, number)
    assert result["session_ended"] and result["exit_code"] is None


# --- what stays


@pytest.mark.needs("programs")
def test_state_stays(session):
    session.run('V=1; export E=2; f() { echo "f $1"; }; alias shout="echo LOUD"; set -f; set -- a "b c"; umask 027; mkdir -p d')
    assert session.out('echo $V; sh -c "echo \\$E"; f x; shout; echo *; echo "$2"; umask') == "1\n2\nf x\nLOUD\n*\nb c\n0027\n"
    result = session.run("cd d")
    assert result["cwd"] == "/workspace/d" == session.get()["cwd"]
    assert session.out("pwd; set +f") == "/workspace/d\n"
    assert session.run("cd /nowhere")["exit_code"] != 0
    assert session.out("exec 5>/tmp/kept") == "" and session.out("echo kept >&5; cat /tmp/kept") == "kept\n"


@pytest.mark.needs("programs")
def test_exit_codes_are_exact(plain):
    assert [plain.run("false")["exit_code"] for _ in range(200)] == [1] * 200
    for code in (0, 1, 2, 126, 127, 128, 255):
        assert plain.run(f"(exit {code})")["exit_code"] == code
        assert plain.run(f"f() {{ return {code}; }}; f")["exit_code"] == code
        assert plain.run(f"return {code}")["exit_code"] == code
    assert plain.run("no-such-program")["exit_code"] == 127
    assert plain.run("false; :")["exit_code"] == 0
    assert plain.run("sh -c 'kill -9 $$'")["exit_code"] == 137
    assert plain.run("")["exit_code"] == 0
    plain.is_alive()


@pytest.mark.needs("programs")
@pytest.mark.parametrize("text, code, out", [
    ("cat <<A; cat <<'B'\nx $((1+1))\nA\n$x `y`\nB\n", 0, "x 2\n$x `y`\n"),
    ("cat <<A\nnever ended", 0, None),
    ("echo 'never ended", 2, ""),
    ('echo "never $(ended', 2, ""),
    ("if true; then", 2, ""),
    ("fi", 2, ""),
    (")", 2, ""),
    ("echo a\\", 0, None),
    ("echo a; # '", 0, "a\n"),
    ("printf 'no newline'", 0, "no newline"),
    ("echo one\necho two\nfalse\n\n", 1, "one\ntwo\n"),
    ("true & wait; echo $?", 0, "0\n"),
    ("break; continue; echo on", 0, "on\n"),
    ("read line; echo \"$? $line\"", 0, "1 \n"),
    ("cat; cat", 0, ""),
    ("exec 1>&-; echo lost", None, ""),
    ("exec 0<&- 1>&- 2>&-; echo lost", None, ""),
    ("exec >/dev/null; echo lost", 0, ""),
    ("exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; echo on", 0, "on\n"),
    ("for i in 3 4 5 6 7 8 9; do eval \"echo x y z >&$i\"; done 2>/dev/null; true", 0, ""),
    ("set -o noclobber; echo on", 0, "on\n"),
    ("set -o nounset; echo on", 0, "on\n"),
    ("set -u; echo $nope; echo not reached", None, ""),
    (": ${nope:?is not set}; echo not reached", None, ""),
    ("echo() { :; }; command() { :; }; cd() { :; }", 0, ""),
    ("alias echo=false command=false eval=false printf=false", 0, ""),
    ("PS1='$(echo x; echo y >&2) '; PS2=y; PROMPT_COMMAND='echo prompted; false'", 0, ""),
    ("PS1='$(exit 7)'; (exit 5)", 5, ""),
    ("trap 'echo ended' EXIT", 0, ""),
    ("trap 'true' DEBUG 2>/dev/null; trap 'true' ERR 2>/dev/null; true", 0, ""),
    ("trap '' TERM INT HUP; echo on", 0, "on\n"),
    ("IFS=abc0123456789; PATH=/nowhere; echo on", 0, "on\n"),
    ("unset PATH HOME IFS PWD; echo on", 0, "on\n"),
    ("stty sane; tty", None, "not a tty\n"),
])
def test_nothing_wedges_a_session(client, box, shell, text, code, out):
    session = Session(client, box, shell=shell)
    result = session.run(text)
    assert result["timed_out"] is False and result["session_ended"] is False, result
    assert result["exit_code"] == code if code is not None else result["exit_code"] != 0 or out is None, result
    assert out is None or result["stdout"] == out, result
    for _ in range(2):
        result = session.run("(exit 6)")
        assert (result["exit_code"], result["session_ended"]) == (6, False), result
    if "alias echo" not in text and "echo() " not in text:
        session.is_alive()
    session.end()


@pytest.mark.needs("programs")
def test_options_of_the_shell_stay(session):
    session.run("set -o noclobber; rm -f clobbered")
    assert session.run("echo x >clobbered; echo y >clobbered")["exit_code"] != 0
    session.run("set +o noclobber; set -x")
    result = session.run("echo traced")
    assert result["stdout"] == "traced\n" and "echo traced" in result["stderr"]
    session.run("set +x; set -v")
    assert session.run("echo shown")["stdout"] == "shown\n"
    session.run("set +v")
    session.is_alive()


# --- ends


@pytest.mark.needs("programs")
@pytest.mark.parametrize("text, want", [
    ("echo last; exit 3", {"exit_code": 3, "signal": None, "stdout": "last\n"}),
    ("set -e; echo last; false; echo not reached", {"exit_code": 1, "stdout": "last\n"}),
    ("kill -9 $$; echo not reached", {"exit_code": None, "signal": "KILL", "stdout": ""}),
    ("echo last; exec sh -c 'echo replaced; exit 4'", {"exit_code": 4, "stdout": "last\nreplaced\n"}),
    ("trap 'echo trapped; exit 5' EXIT; exit 4", {"exit_code": 5}),
])
def test_a_shell_that_ends_is_told(client, box, shell, text, want):
    session = Session(client, box, shell=shell)
    result = session.run(text)
    assert {name: result[name] for name in want} == want and result["session_ended"] is True
    problem = session.problem("true", 409, "session_ended")
    assert problem["remediation"] and session.get()["state"] == "ended"
    wait_until(lambda: session.get()["ended"], what="the shell's record")
    assert {name: session.get()[name] for name in ("exit_code", "signal")} == {name: result[name] for name in ("exit_code", "signal")}
    session.end()


@pytest.mark.needs("programs")
def test_errexit_ends_it_only_when_something_fails(session):
    session.run("set -e")
    session.is_alive()
    assert session.run("if false; then :; fi; false || true")["session_ended"] is False
    assert session.run("false")["session_ended"] is True


# --- input and output


@pytest.mark.needs("programs")
def test_input(session):
    assert session.out("cat; read x; echo \"[$x]\"", stdin="given\nmore") == "given\nmore[]\n"
    assert session.out("read x; read y; echo \"$y $x\"", stdin="one\ntwo\nthree\n") == "two one\n"
    assert session.out("sh -s", stdin="echo from a script\n") == "from a script\n"
    assert session.out("cat") == ""
    assert session.out("true", stdin="nobody reads it" * 50000) == ""
    number = session.run("wc -c", 202, stdin_encoding="raw")["id"]
    session.client.feed(session.box, number, b"x" * 3_000_000)
    assert session.client.exec_wait(session.box, number)["stdout"].strip() == "3000000"
    session.is_alive()


@pytest.mark.needs("programs")
def test_binary_output_and_what_looks_like_a_protocol(session):
    result = session.run("printf '\\000\\377\\001'; printf 'err\\200' >&2")
    assert base64.b64decode(result["stdout"]) == b"\0\xff\x01" and base64.b64decode(result["stderr"]) == b"err\x80"
    text = "0123456789abcdef e 0\n0123456789abcdef a 0\n"
    assert session.run(f"printf '{text}'; printf '{text}' >&2; (exit 3)")["exit_code"] == 3
    assert session.run("printf 'a b 0\\ne 0\\n\\n' >/proc/$PPID/fd/9; printf '%09999d' 1 >/proc/$PPID/fd/9; (exit 4)")["exit_code"] == 4
    session.is_alive()


@pytest.mark.needs("programs")
def test_much_output(session):
    result = session.run("seq 1 300000; seq 1 300000 >&2", max_output=1000)
    assert result["truncated"] and result["stdout_bytes"] == result["stderr_bytes"] == 1988895
    assert session.client.output(session.box, result["id"]).content == b"".join(b"%d\n" % i for i in range(1, 300001))


@pytest.mark.needs("programs")
def test_a_text_of_one_mebibyte(session):
    text = "x='" + "y" * (1024 * 1024 - 20) + "'; echo ${#x}"
    assert session.out(text) == f"{1024 * 1024 - 20}\n"
    lines = ("true\n" * 210000)[:1024 * 1024 - 6] + "\nfalse"
    assert session.run(lines)["exit_code"] == 1
    session.is_alive()


@pytest.mark.needs("programs")
def test_background_jobs(client, session):
    began = time.monotonic()
    result = session.run("(sleep 1; echo late; echo late >&2; echo written >late-file) & echo at once")
    assert result["stdout"] == "at once\n" and time.monotonic() - began < 1
    assert session.out("echo next") == "next\n"
    wait_until(lambda: session.run("cat late-file")["exit_code"] == 0, what="the job's end")
    assert session.out("echo after; rm late-file") == "after\n"
    assert session.out("sleep 300 & sleep 0.1; kill $!; wait $! || true; echo ended") == "ended\n"


@pytest.mark.needs("programs")
def test_runs_of_one_session_are_serial(client, plain):
    number = plain.run("sleep 300", 202, detach=True)["id"]
    problem = plain.problem("true", 409, "session_busy")
    assert problem["retryable"] and "DELETE" in problem["remediation"]
    assert plain.get()["state"] == "busy"
    client.request("DELETE", f"/v1/sandboxes/{plain.box}/execs/{number}", 204)
    plain.is_alive()


@pytest.mark.needs("programs")
def test_a_run_may_be_ended_at_any_moment(client, session):
    """Before its first command, within it, or when it ends by itself."""
    session.run("kept=4")
    for i in range(60):
        number = session.run("sleep 300" if i % 2 else "sleep 0.01", 202, detach=True)["id"]
        time.sleep(0.001 * (i % 13))
        if i % 3:
            client.request("DELETE", f"/v1/sandboxes/{session.box}/execs/{number}?grace=1", 204)
        else:
            client.request("POST", f"/v1/sandboxes/{session.box}/execs/{number}/signal", (204, 409), json={"signal": "INT"})
            if i % 2:
                client.request("DELETE", f"/v1/sandboxes/{session.box}/execs/{number}", 204)
        result = client.exec_wait(session.box, number)
        assert result["session_ended"] is False, (i, result)
        assert session.run("(exit $kept)")["exit_code"] == 4
    assert processes(client, session.box, "sleep 300") == []


# --- timeouts, signals, leaving


@pytest.mark.needs("programs")
@pytest.mark.parametrize("text", [
    "sleep 7002; echo not reached",
    "sleep 7002 | cat; echo not reached",
    "x=$(sleep 7002); echo not reached",
    "while :; do sleep 7002; done; echo not reached",
    "while :; do :; done; echo not reached",
    "f() { sleep 7002; echo not reached; }; f; echo not reached",
    "sh -c 'trap \"\" INT TERM; sleep 7002; sleep 7002'",
    "(setsid sleep 7002 &); sleep 7002",
    "sleep 7002 & wait; echo not reached",
    "cat /dev/zero >/dev/null; echo not reached",
    "trap 'echo interrupted' INT; while :; do sleep 7002; done",
])
def test_a_timeout_ends_what_runs_and_the_shell_lives(client, box, shell, text):
    session = Session(client, box, shell=shell)
    session.run("kept=5; sleep 7003 & true")
    result = session.run(text, timeout=0.3)
    assert result["timed_out"] and result["exit_code"] is None and result["error"]["code"] == "timeout"
    assert "not reached" not in result["stdout"]
    assert processes(client, box, "sleep 7002") == []
    if "trap 'echo" in text:  # its own loop goes on after an interrupt, so the shell had to end
        assert result["session_ended"] and session.get()["state"] == "ended"
    else:
        assert not result["session_ended"] and session.out("echo $kept") == "5\n"
        assert len(processes(client, box, "sleep 7003")) == 1  # a job of before
    session.end()
    assert processes(client, box, "sleep 7003") == []


@pytest.mark.needs("programs")
def test_a_shell_that_executes_nothing_any_more(client, box, shell):
    session = Session(client, box, shell=shell)
    result = session.run("set -n", timeout=0.3)
    if result["timed_out"]:  # dash and ash obey it
        assert result["session_ended"] and session.get()["state"] == "ended"
    else:
        session.is_alive()
    session.end()


@pytest.mark.needs("programs")
def test_a_prompt_that_reads_its_input(client, box, shell):
    """It takes away what the shell is told: the time ends that, truly told."""
    session = Session(client, box, shell=shell)
    session.run("PS1='$(cat)'", timeout=0.3)
    result = session.run("echo on", timeout=0.3) if session.get()["state"] != "ended" else {"timed_out": True, "session_ended": True}
    assert result["timed_out"] or result["stdout"] == "on\n"
    wait_until(lambda: session.get()["state"] == ("ended" if result["session_ended"] else "idle"), what="its state")
    session.end()


@pytest.mark.needs("programs")
def test_signals(client, session):
    at = f"/v1/sandboxes/{session.box}/execs"
    session.run("kept=6")
    number = session.run("sleep 300; echo not reached", 202, detach=True)["id"]
    wait_until(lambda: "sleep" in str(client.get(f"/v1/sandboxes/{session.box}/ps")), what="the sleep")
    client.request("POST", f"{at}/{number}/signal", 204, json={"signal": "INT"})
    result = client.exec_wait(session.box, number)
    assert (result["exit_code"], result["stdout"]) == (130, "")
    number = session.run("sh -c 'echo up; exec sleep 300'; echo \"got $?\"", 202, detach=True)["id"]
    wait_until(lambda: client.get(f"{at}/{number}")["stdout"] == "up\n", what="the command")
    client.request("POST", f"{at}/{number}/signal", 204, json={"signal": "TERM", "scope": "tree"})
    assert client.exec_wait(session.box, number)["stdout"] == "up\ngot 143\n"
    assert session.out("echo $kept") == "6\n"


@pytest.mark.needs("programs")
def test_a_client_that_leaves(client, plain):
    plain.run("kept=7")
    answer = client.request("POST", f"{plain.at}/runs", stream=True, headers={"Accept": TYPES["ndjson"]},
                            json={"command": "echo up; sleep 7004", "disconnect_grace": 0})
    events = Events(answer, "ndjson")
    number = events.until("started")["exec"]
    events.until("stdout")
    events.close()
    assert client.exec_wait(plain.box, number)["error"]["code"] == "cancelled"
    assert processes(client, plain.box, "sleep 7004") == []
    assert plain.out("echo $kept") == "7\n"


# --- as an execution


@pytest.mark.needs("programs")
def test_a_run_is_an_execution(client, plain):
    answer = client.request("POST", f"{plain.at}/runs", stream=True, headers={"Accept": TYPES["sse"]},
                            json={"command": "echo out; cd /tmp; echo err >&2; false"})
    events = Events(answer, "sse").all()
    assert [e["type"] for e in events][0] == "started" and events[-1]["type"] == "exit"
    result = events[-1]["result"]
    assert (result["exit_code"], result["session"], result["cwd"], result["session_ended"]) == (1, plain.id, "/tmp", False)
    record = client.get(f"/v1/sandboxes/{plain.box}/execs/{result['id']}")
    assert (record["stdout"], record["stderr"], record["cwd"]) == ("out\n", "err\n", "/tmp")
    assert record["cmd"] == ["sh", "-c", "echo out; cd /tmp; echo err >&2; false"]
    assert client.get(f"/v1/sandboxes/{plain.box}/execs/{plain.id}")["session"] is None


@pytest.mark.needs("programs")
def test_a_repeated_run_joins(client, plain):
    headers = {"Idempotency-Key": f"run-{plain.id}"}
    body = {"json": {"command": "echo $((n=n+1))", "detach": True}, "headers": headers}
    first = client.request("POST", f"{plain.at}/runs", 202, **body).json()["id"]
    assert client.request("POST", f"{plain.at}/runs", 202, **body).json()["id"] == first
    assert client.exec_wait(plain.box, first)["stdout"] == "1\n"
    assert plain.out("echo $n") == "1\n"
    client.problem("POST", f"{plain.at}/runs", 409, "idempotency_conflict", json={"command": "true"}, headers=headers)


@pytest.mark.needs("programs")
def test_secrets_are_masked(client):
    box = client.create("secretive", secrets=["hush-hush-9"])["id"]
    session = Session(client, box)
    result = session.run("mkdir -p hush-hush-9; cd hush-hush-9; echo hush-hush-9; echo hush-hush-9 >&2")
    assert (result["stdout"], result["stderr"], result["cwd"]) == ("***\n", "***\n", "/workspace/***")
    assert "hush" not in str(result) + str(session.get()) + str(client.get(f"/v1/sandboxes/{box}/execs"))
    client.delete(box)


@pytest.mark.needs("programs")
def test_a_directory_that_is_gone(session):
    result = session.run("mkdir gone; cd gone; rmdir ../gone; echo on")
    assert result["stdout"] == "on\n" and result["cwd"] is None
    assert session.run("cd /tmp")["cwd"] == "/tmp"


@pytest.mark.needs("programs", "adoption")
def test_a_session_outlives_the_server(client, server):
    box = client.create("outliving")["id"]
    session, idle = Session(client, box, shell="bash"), Session(client, box)
    idle.run("cd /tmp; kept=9")
    session.run("kept=8")
    number = session.run("echo before; while [ ! -e go ]; do sleep 0.05; done; echo after; cd /tmp", 202, detach=True)["id"]
    wait_until(lambda: client.get(f"/v1/sandboxes/{box}/execs/{number}")["stdout"] == "before\n", what="the text running")
    server.kill()
    server.start()
    assert client.get(f"/v1/sandboxes/{box}/sessions/{session.id}")["state"] == "busy"
    session.problem("true", 409, "session_busy")
    client.put(box, "go", b"")
    result = client.exec_wait(box, number)
    assert (result["stdout"], result["exit_code"], result["cwd"]) == ("before\nafter\n", 0, "/tmp")
    assert session.out("echo $kept") == "8\n" and session.get()["cwd"] == "/tmp"
    wait_until(lambda: idle.get()["cwd"] == "/tmp", what="what the agent remembers")
    assert idle.out("echo $kept") == "9\n"
    client.delete(box)
