"""Commands and their results: the table of executions, B03, B07, B08, B24, B25, B27, B28, B37."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from server import SOAK, text_of, wait_until


@pytest.mark.needs("programs")
@pytest.mark.parametrize("cmd, want", [
    (["true"], {"exit_code": 0, "signal": None, "timed_out": False, "stdout": "", "stderr": "", "error": None}),
    ("exit 3", {"exit_code": 3, "error": None}),
    ("echo out; echo err >&2; exit 255", {"exit_code": 255, "stdout": "out\n", "stderr": "err\n"}),
    ("kill -KILL $$", {"exit_code": None, "signal": "KILL", "error": None}),
    ("kill -SEGV $$", {"exit_code": None, "signal": "SEGV"}),
    (["python3", "-c", "print(6*7)"], {"exit_code": 0, "stdout": "42\n", "stdout_bytes": 3, "stderr_bytes": 0, "truncated": False}),
    (["pwd"], {"stdout": "/workspace\n"}),
    ("touch $HOME/x /tmp/x x && test $(id -u) -ne 0 && echo fine", {"stdout": "fine\n"}),
    ("cat", {"stdout": "", "exit_code": 0}),  # B06e: no stdin is /dev/null
])
def test_results(client, box, cmd, want):
    result = client.exec(box, cmd)
    assert {name: result[name] for name in want} == want
    assert result["state"] == "exited" and result["duration"] >= 0


@pytest.mark.needs("programs")
@pytest.mark.parametrize("cmd, code, error", [
    (["/no/such/program"], 127, "command_not_found"),
    (["no-such-program"], 127, "command_not_found"),
    (["/no/" + "x" * 200], 127, "command_not_found"),
    (["/etc/passwd"], 126, "not_executable"),
    (["/workspace"], 126, "not_executable"),
])
def test_programs_that_cannot_run(client, box, cmd, code, error):
    result = client.exec(box, cmd)
    assert result["exit_code"] == code and result["error"]["code"] == error
    shown = cmd[0] if len(cmd[0]) < 160 else "exec"  # a part could show a part of a secret
    assert result["error"]["message"].startswith(f"{shown}: ")
    assert result["stdout"] == ""  # the message is not mixed into the output


@pytest.mark.needs("programs")
def test_workdir(client, box):
    assert client.exec(box, ["pwd"], workdir="/tmp")["stdout"] == "/tmp\n"
    client.exec(box, ["mkdir", "-p", "a b'; touch pwn; '"])
    assert client.exec(box, ["pwd"], workdir="a b'; touch pwn; '")["stdout"] == "/workspace/a b'; touch pwn; '\n"
    assert client.exec(box, "test ! -e pwn")["exit_code"] == 0
    problem = client.exec_problem(box, ["true"], 422, "workdir_not_found", workdir="/nowhere")
    assert "/nowhere" in problem["detail"]


@pytest.mark.needs("programs")
def test_the_path_of_the_command_counts(client, box):
    assert client.exec(box, ["my-tool"], env={"PATH": "/workspace/tools"})["error"]["code"] == "command_not_found"
    client.put(box, "tools/my-tool", b"#!/bin/sh\necho mine\n", more="&mode=0755")
    assert client.exec(box, ["my-tool"], env={"PATH": "/workspace/tools:/bin"})["stdout"] == "mine\n"


@pytest.mark.needs("programs")
def test_a_workdir_of_the_sandbox_itself(client):
    id = client.create(workdir="/srv/app")["id"]
    assert client.exec(id, ["pwd"])["stdout"] == "/srv/app\n"
    client.put(id, "hi", b"1")
    assert client.read(id, "/srv/app/hi") == b"1"
    client.delete(id)


@pytest.mark.needs("programs")
def test_b24_dollars_are_literal(client):
    env = {"A": "x", "B": "$(A)", "C": "$$D", "E": "p$$", "F": "$(NOPE)", "G": "a$b"}
    id = client.create(env=env)["id"]
    have = environment(client, id)
    assert {name: have[name] for name in env} == env
    assert client.exec(id, ["printf", "%s", "$(A)"])["stdout"] == "$(A)"
    client.delete(id)


@pytest.mark.needs("programs")
def test_b25_env_values_are_not_code(client):
    values = {"Q": "it's \"x\" $(touch /tmp/pwn) `id`\nline2\t\\", "BIG": "y" * 65536, "EMPTY": "", "U": "日本"}
    id = client.create(env=values)["id"]
    for env in ({}, {"Q": "over\nridden"}):
        have = environment(client, id, env=env)
        assert {name: have[name] for name in values} == {**values, **env}
    assert client.exec(id, "test ! -e /tmp/pwn")["exit_code"] == 0
    client.delete(id)


@pytest.mark.needs("programs")
def test_b25_names_that_mean_something_are_the_callers(client, box):
    """They reach the caller's program as they are, and nothing else."""
    env = {"LD_PRELOAD": "/nowhere.so", "PATH": "/bin", "HOME": "/tmp", "IFS": "x", "PODSANDBOX_AGENT": "x"}
    have = environment(client, box, env=env)
    assert {name: have[name] for name in env} == env
    assert client.exec(box, ["pwd"], env=env)["stdout"] == "/workspace\n"
    assert not set(env.values()) & set(environment(client, box).values())


def environment(client, id, **more):
    out = client.exec(id, ["env", "-0"], **more)["stdout"]
    return dict(item.split("=", 1) for item in out.split("\0") if item)


@pytest.mark.parametrize("field, body", [
    ("cmd", {}), ("cmd", {"cmd": []}), ("cmd", {"cmd": "ls"}), ("cmd", {"cmd": [""]}), ("cmd", {"cmd": [1]}),
    ("cmd", {"cmd": ["a\u0000b"]}), ("timeout", {"cmd": ["true"], "timeout": -1}), ("timeout", {"cmd": ["true"], "timeout": "1"}),
    ("timeout", {"cmd": ["true"], "timeout": 10**12}), ("max_output", {"cmd": ["true"], "max_output": -1}),
    ("max_output", {"cmd": ["true"], "max_output": 0.5}), ("max_output", {"cmd": ["true"], "max_output": 1 << 40}),
    ("stdin", {"cmd": ["true"], "stdin": 5}), ("stdin", {"cmd": ["true"], "stdin": "%%%", "stdin_encoding": "base64"}),
    ("stdin_encoding", {"cmd": ["true"], "stdin": "a", "stdin_encoding": "latin1"}),
    ("workdir", {"cmd": ["true"], "workdir": "a\u0000b"}), ("workdir", {"cmd": ["true"], "workdir": ""}),
    *(("env", {"cmd": ["true"], "env": {name: "1"}}) for name in ("A B", "A=B", "", "1BAD", "A\nB", "A; touch /tmp/pwn #", "PATH\0")),
    ("on_disconnect", {"cmd": ["true"], "on_disconnect": "maybe"}), ("shell", {"cmd": ["true"], "shell": True}),
])
def test_a_wrong_field_is_named(client, box, field, body):
    problem = client.problem("POST", f"/v1/sandboxes/{box}/execs", 400, json=body)
    assert field in problem["detail"] or "\\u0000" in json.dumps(body), problem


def test_a_command_whose_id_is_wrong(client, box):
    for number in ("99", "x", "0", "-1"):
        client.problem("GET", f"/v1/sandboxes/{box}/execs/{number}", 404)


@pytest.mark.needs("programs")
def test_list_and_records(client):
    id = client.create()["id"]
    for code in (0, 1, 2):
        assert client.exec(id, f"echo {code}; exit {code}")["exit_code"] == code
    page = client.get(f"/v1/sandboxes/{id}/execs")
    assert sorted(item["exit_code"] for item in page["items"]) == [0, 1, 2]
    one = next(item for item in page["items"] if item["exit_code"] == 2)
    shown = client.get(f"/v1/sandboxes/{id}/execs/{one['id']}")
    assert shown["stdout"] == "2\n" and shown["cmd"] == ["sh", "-c", "echo 2; exit 2"]
    client.delete(id)
    assert client.get(f"/v1/sandboxes/{id}/execs/{one['id']}")["stdout"] == "2\n"  # the tombstone keeps it


@pytest.mark.needs("programs")
def test_b03_false_is_never_true(client, box):
    codes = [client.exec(box, ["false"])["exit_code"] for _ in range(200 if SOAK else 50)]
    assert set(codes) == {1}


@pytest.mark.needs("programs")
def test_many_at_once_and_the_answers_are_their_own(client, box):
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda i: client.exec(box, ["sh", "-c", f"sleep 0.1; echo {i}; exit {i % 200}"]), range(60)))
    assert [(result["stdout"], result["exit_code"]) for result in results] == [(f"{i}\n", i % 200) for i in range(60)]
    assert client.sandbox(box)["running_execs"] == 0


# --- bytes ------------------------------------------------------------------------------------
@pytest.mark.needs("programs")
def test_b28_bytes_are_not_text(client, box):
    result = client.exec(box, ["printf", "\\377\\376a\\300\\257"])
    assert result["stdout_encoding"] == "base64" and text_of(result) == b"\xff\xfea\xc0\xaf"
    assert text_of(client.exec(box, ["printf", "\\324"])) == b"\xd4"
    assert text_of(client.exec(box, ["printf", "a\\000b"])) == b"a\0b"
    data = os.urandom(65536)
    client.put(box, "random", data)
    assert text_of(client.exec(box, ["cat", "random"])) == data


@pytest.mark.needs("programs")
def test_b28_a_character_in_two_chunks_is_a_character(client, box):
    result = client.exec(box, "printf '\\342\\202'; sleep 0.05; printf '\\254'")
    assert result["stdout_encoding"] == "utf-8" and result["stdout"] == "€"
    for count in (4095, 8190, 32767):
        result = client.exec(box, ["python3", "-c", f"print('a' * {count} + '€가나다', end='')"])
        assert result["stdout_encoding"] == "utf-8" and result["stdout"] == "a" * count + "€가나다"


@pytest.mark.needs("programs")
def test_b13_answers_are_json_whatever_the_output(client, box):
    response = client.request("POST", f"/v1/sandboxes/{box}/execs", 200,
                              json={"cmd": ["printf", "\\001\\033[31m\\342\\200\\250\\\\\"\\177"]})
    strict = json.loads(response.content.decode("utf-8"))
    assert text_of(strict) == b'\x01\x1b[31m\xe2\x80\xa8\\"\x7f'


@pytest.mark.needs("programs")
def test_b27_arguments_up_to_what_linux_takes(client, box):
    long = "x" * 131071
    assert client.exec(box, ["sh", "-c", 'printf %s "$1" | wc -c', "sh", long])["stdout"].strip() == "131071"
    client.exec_problem(box, ["true", long + "x"], 413, "argument_too_long")
    client.exec_problem(box, ["true"] + ["y" * 100000] * 30, 413, "argument_too_long")
    client.exec_problem(box, ["true"], 413, "argument_too_long", env={"A": "z" * 131072})
    assert client.exec(box, "exit 7 #" + "s" * 20480)["exit_code"] == 7
    odd = ["a b", "", "'\"\\", "\n", "日本"]
    assert client.exec(box, ["python3", "-c", "import sys; print(sys.argv[1:])", *odd])["stdout"] == repr(odd) + "\n"


# --- ends -------------------------------------------------------------------------------------
@pytest.mark.needs("programs")
def test_b07_a_timeout_ends_the_whole_tree(client, box):
    script = """trap '' TERM
        (trap '' TERM; exec -a MARK7 sleep 300) &
        setsid bash -c 'exec -a MARK7 sleep 300' &
        (setsid setsid bash -c 'trap "" TERM; exec -a MARK7 sleep 300' &)
        exec -a MARK7b sleep 300"""
    look = ["sh", "-c", "grep -laE '^MARK7' /proc/[0-9]*/cmdline; true"]
    started = client.start(box, ["bash", "-c", script], timeout=2)
    wait_until(lambda: len(client.exec(box, look)["stdout"].split()) == 4, what="the scan finding what it looks for")
    result = client.exec_wait(box, started["id"])
    assert (result["timed_out"], result["exit_code"], result["error"]["code"]) == (True, None, "timeout")
    assert client.exec(box, look)["stdout"] == ""
    assert client.exec(box, ["true"])["exit_code"] == 0


@pytest.mark.needs("programs")
def test_b08_a_background_child_does_not_hold_the_answer(client, box):
    result = client.exec(box, "sleep 61 & echo $!", timeout=20)
    assert result["stdout"].strip().isdigit() and result["exit_code"] == 0 and result["timed_out"] is False
    assert client.exec(box, "kill " + result["stdout"])["exit_code"] == 0  # it was left alone
    assert client.exec(box, "sleep 300 & wait", timeout=0.5)["timed_out"] is True


@pytest.mark.needs("programs")
def test_a_background_server_outlives_its_command(client, box):
    started = client.exec(box, "python3 -m http.server 8123 >/dev/null 2>&1 & echo $!")
    assert client.exec(box, "for i in $(seq 100); do python3 -c 'import urllib.request as u; "
                            "print(u.urlopen(\"http://127.0.0.1:8123/\").status)' 2>/dev/null && exit; sleep 0.1; done; exit 1"
                       )["stdout"] == "200\n"
    client.exec(box, "kill " + started["stdout"])


@pytest.mark.needs("programs")
def test_b37_orphans_are_reaped(client):
    id = client.create()["id"]
    for _ in range(3):
        client.exec(id, "i=0; while [ $i -lt 200 ]; do (sh -c 'sleep 0.01 &' ); i=$((i+1)); done; sleep 0.2", timeout=100)
    wait_until(lambda: client.exec(id, "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l")["stdout"] == "0\n",
               what="no zombies")
    client.delete(id)


def test_a_sandbox_that_ends_tells_its_commands(client, promises):
    id = client.create()["id"]
    if promises["programs"]:
        started = client.start(id, ["sleep", "600"])
    client.delete(id)
    if promises["programs"]:
        result = client.exec_wait(id, started["id"])
        assert result["exit_code"] is None and result["error"]["code"] == "sandbox_gone"
    client.exec_problem(id, ["true"], 410, "gone")
