"""Commands and their results: B01, B03, B05–B08, B24, B27, B28, B34."""

import base64
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from server import SOAK, WRAPPER, wait_until

MIB = 1 << 20


@pytest.fixture(scope="module")
def box(cloud):
    """One sandbox for all tests that leave it as it was."""
    client = cloud.client()
    client.create("box", ttl=3600)
    yield "box"


def text_of(result, stream="stdout"):
    if result[stream + "_encoding"] == "base64":
        return base64.b64decode(result[stream])
    return result[stream].encode()


# --- the table of design/rest.md ------------------------------------------------------
@pytest.mark.parametrize("cmd, want", [
    (["true"], {"exit_code": 0, "signal": None, "timed_out": False, "stdout": "", "stderr": "", "error": None}),
    ("exit 3", {"exit_code": 3, "error": None}),
    ("echo out; echo err >&2; exit 255", {"exit_code": 255, "stdout": "out\n", "stderr": "err\n"}),
    ("kill -KILL $$", {"exit_code": None, "signal": "KILL", "error": None}),
    ("kill -SEGV $$", {"exit_code": None, "signal": "SEGV"}),
    (["python3", "-c", "print(6*7)"], {"exit_code": 0, "stdout": "42\n", "stdout_bytes": 3, "stderr_bytes": 0, "truncated": False}),
    (["pwd"], {"stdout": "/workspace\n"}),
    ("echo $HOME; id -u; id -g", {"stdout": "/home/sandbox\n1000\n1000\n"}),
    ("cat", {"stdout": "", "exit_code": 0}),  # B06e: no stdin is /dev/null
])
def test_results(client, box, cmd, want):
    result = client.exec(box, cmd)
    assert {name: result[name] for name in want} == want
    assert result["state"] == "exited" and result["duration"] >= 0


@pytest.mark.parametrize("cmd, code, error", [
    (["/no/such/program"], 127, "command_not_found"),
    (["no-such-program"], 127, "command_not_found"),
    (["/etc/passwd"], 126, "not_executable"),
    (["/workspace"], 126, "not_executable"),
])
def test_programs_that_cannot_run(client, box, cmd, code, error):
    result = client.exec(box, cmd)
    assert result["exit_code"] == code and result["error"]["code"] == error
    assert result["stdout"] == ""  # the message is not mixed into the output


def test_workdir_and_env(client, box):
    assert client.exec(box, ["pwd"], workdir="/tmp")["stdout"] == "/tmp\n"
    client.exec(box, ["mkdir", "-p", "a b'; touch pwn; '"])
    assert client.exec(box, ["pwd"], workdir="a b'; touch pwn; '")["stdout"] == "/workspace/a b'; touch pwn; '\n"
    assert client.exec(box, "test ! -e pwn")["exit_code"] == 0
    problem = client.exec_problem(box, ["true"], 422, "workdir_not_found", workdir="/nowhere")
    assert "/nowhere" in problem["detail"]
    assert client.exec(box, ["printenv", "X"], env={"X": "1 2"})["stdout"] == "1 2\n"
    assert client.exec(box, ["my-tool"], env={"PATH": "/workspace/tools"})["error"]["code"] == "command_not_found"
    client.put(box, "tools/my-tool", b"#!/bin/sh\necho mine\n", more="&mode=0755")
    assert client.exec(box, ["my-tool"], env={"PATH": "/workspace/tools:/bin"})["stdout"] == "mine\n"


@pytest.mark.parametrize("field, body", [
    ("cmd", {}), ("cmd", {"cmd": []}), ("cmd", {"cmd": "ls"}), ("cmd", {"cmd": [""]}), ("cmd", {"cmd": [1]}),
    ("cmd", {"cmd": ["a\u0000b"]}), ("timeout", {"cmd": ["true"], "timeout": -1}), ("timeout", {"cmd": ["true"], "timeout": "1"}),
    ("timeout", {"cmd": ["true"], "timeout": 10**12}), ("max_output", {"cmd": ["true"], "max_output": -1}),
    ("max_output", {"cmd": ["true"], "max_output": 0.5}), ("max_output", {"cmd": ["true"], "max_output": 1 << 40}),
    ("stdin", {"cmd": ["true"], "stdin": 5}), ("stdin", {"cmd": ["true"], "stdin": "%%%", "stdin_encoding": "base64"}),
    ("stdin_encoding", {"cmd": ["true"], "stdin": "a", "stdin_encoding": "latin1"}),
    ("workdir", {"cmd": ["true"], "workdir": "a\u0000b"}), ("workdir", {"cmd": ["true"], "workdir": ""}),
    ("env", {"cmd": ["true"], "env": {"A B": "1"}}), ("on_disconnect", {"cmd": ["true"], "on_disconnect": "maybe"}),
    ("shell", {"cmd": ["true"], "shell": True}),
])
def test_a_wrong_field_is_named(client, box, field, body):
    response = client.request("POST", f"/v1/sandboxes/{box}/execs", 400, json=body)
    problem = response.json()
    assert field in problem["detail"] or "\\u0000" in json.dumps(body), problem


def test_what_does_not_exist_yet_is_said(client, box):
    client.exec_problem(box, ["true"], 422, "not_supported", tty=True)
    client.exec_problem(box, ["true"], 422, "not_supported", detach=True)


def test_list_and_records(client):
    client.create("records")
    for code in (0, 1, 2):
        assert client.exec("records", f"echo {code}; exit {code}")["exit_code"] == code
    page = client.get("/v1/sandboxes/records/execs")
    assert sorted(item["exit_code"] for item in page["items"]) == [0, 1, 2]
    one = next(item for item in page["items"] if item["exit_code"] == 2)
    shown = client.get(f"/v1/sandboxes/records/execs/{one['id']}")
    assert shown["stdout"] == "2\n" and shown["cmd"] == ["sh", "-c", "echo 2; exit 2"]
    client.problem("GET", "/v1/sandboxes/records/execs/99", 404)
    client.problem("GET", "/v1/sandboxes/records/execs/x", 404)
    client.delete("records")
    assert client.get(f"/v1/sandboxes/records/execs/{one['id']}")["stdout"] == "2\n"  # the tombstone keeps it


# --- output -----------------------------------------------------------------------------
def test_b01_every_byte_of_a_large_output(client, box):
    for _ in range(20 if SOAK else 3):
        result = client.exec(box, ["seq", "1", "2000000"], max_output=1024)
        assert result["exit_code"] == 0 and result["stdout_bytes"] == 14888896 and result["truncated"] is True
        raw = client.output(box, result["id"]).content
        assert len(raw) == 14888896 and raw.endswith(b"\n2000000\n") and raw.startswith(b"1\n2\n")


@pytest.mark.parametrize("size", [2**20 - 1, 2**20, 2**20 + 1, 2**22 - 1, 2**22, 2**22 + 1] +
                         ([2**25 - 1, 2**25, 2**25 + 1, 2**27 - 1, 2**27, 2**27 + 1] if SOAK else []))
def test_b01_sizes(client, box, size):
    result = client.exec(box, ["head", "-c", str(size), "/dev/zero"], max_output=0)
    assert result["exit_code"] == 0 and result["stdout_bytes"] == size


def test_b01_a_slow_reader_gets_all(server, client, box):
    result = client.exec(box, ["seq", "1", "400000"], max_output=0)
    response = client.request("GET", f"/v1/sandboxes/{box}/execs/{result['id']}/output?stream=stdout", 200, stream=True)
    got = b""
    for piece in response.iter_content(4096):
        got += piece
    assert got == b"".join(b"%d\n" % i for i in range(1, 400001))


def test_output_by_offset(client, box):
    result = client.exec(box, "seq 1 1000; echo bad >&2")
    whole = client.output(box, result["id"]).content
    assert client.output(box, result["id"], offset=100).content == whole[100:]
    assert client.output(box, result["id"], offset=len(whole)).content == b""
    assert client.output(box, result["id"], "stderr").content == b"bad\n"
    client.problem("GET", f"/v1/sandboxes/{box}/execs/{result['id']}/output?stream=what", 400)
    client.problem("GET", f"/v1/sandboxes/{box}/execs/{result['id']}/output?offset=-1", 400)


def test_b03_false_is_never_true(client, box):
    for _ in range(200 if SOAK else 40):
        assert client.exec(box, ["false"])["exit_code"] == 1


def test_b28_bytes_are_not_text(client, box):
    result = client.exec(box, ["printf", "\\377\\376a\\300\\257"])
    assert result["stdout_encoding"] == "base64" and text_of(result) == b"\xff\xfea\xc0\xaf"
    result = client.exec(box, ["printf", "\\324"])
    assert text_of(result) == b"\xd4"
    # A character that is cut by a chunk boundary is a character.
    result = client.exec(box, "printf '\\342\\202'; sleep 0.05; printf '\\254'")
    assert result["stdout_encoding"] == "utf-8" and result["stdout"] == "€"
    for count in (4095, 8190, 32767):
        result = client.exec(box, ["python3", "-c", f"print('a' * {count} + '€가나다', end='')"])
        assert result["stdout_encoding"] == "utf-8" and result["stdout"] == "a" * count + "€가나다"
    data = os.urandom(65536)
    client.put(box, "random", data)
    assert text_of(client.exec(box, ["cat", "random"])) == data
    result = client.exec(box, ["printf", "a\\000b"])
    assert text_of(result) == b"a\0b"


def test_b34_over_the_limit_head_and_tail_are_kept(client, box):
    result = client.exec(box, "head -c 20000000 /dev/zero | tr '\\0' A; printf END; echo TAIL >&2; exit 3", max_output=1000)
    assert result["exit_code"] == 3 and result["truncated"] is True
    assert result["stdout_bytes"] == 20000003 and result["stderr"] == "TAIL\n" and result["stderr_omitted"] is None
    omitted = result["stdout_omitted"]
    assert omitted == {"offset": 500, "bytes": 20000003 - 1000}
    assert result["stdout"].startswith("A" * 500) and result["stdout"].endswith("A" * 497 + "END")
    default = client.exec(box, "head -c 3000000 /dev/zero | tr '\\0' A")
    assert default["truncated"] is True and len(default["stdout"]) in range(MIB, MIB + 200)


def test_b34_output_before_a_timeout_is_kept(client, box):
    result = client.exec(box, "printf partial; sleep 60", timeout=0.5)
    assert result["timed_out"] is True and result["exit_code"] is None
    assert result["stdout"] == "partial" and result["error"]["code"] == "timeout"


@pytest.mark.skipif(bool(WRAPPER), reason="memory under valgrind says nothing")
def test_b34_memory_stays_bounded(server, client, box):
    if "SAN" in "".join(name for name in os.environ if name.endswith("SAN_OPTIONS")):
        pytest.skip("nor does it under a sanitizer")
    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda _: client.exec(box, "head -c 8000000 /dev/zero", max_output=1000), range(50 if SOAK else 20)))
    assert {result["stdout_bytes"] for result in results} == {8000000}
    assert server.usage()["rss"] < 300 * 1024


# --- input ---------------------------------------------------------------------------------
def test_b06_end_of_input(client, box):
    assert client.exec(box, ["cat"], stdin="abc")["stdout"] == "abc"
    assert client.exec(box, "cat >/dev/null; sleep 0.3; echo late", stdin="abc")["stdout"] == "late\n"
    result = client.exec(box, ["cat"], stdin="")
    assert result["stdout"] == "" and result["exit_code"] == 0
    data = bytes(range(256)) * 100
    result = client.exec(box, ["cat"], stdin=base64.b64encode(data).decode(), stdin_encoding="base64")
    assert text_of(result) == data


def test_input_that_nobody_reads(client, box):
    assert client.exec(box, ["true"], stdin="x" * MIB)["exit_code"] == 0
    assert client.exec(box, ["head", "-c", "3"], stdin="abcdef" * 100000)["stdout"] == "abc"


def test_json_input_has_a_limit(client, box):
    assert client.exec(box, ["wc", "-c"], stdin="x" * MIB)["stdout"].strip() == str(MIB)
    client.exec_problem(box, ["wc", "-c"], 413, "too_large", stdin="x" * (MIB + 1))


@pytest.mark.parametrize("mib", [40, 44, 48, 50, 64] if SOAK else [40])
def test_b05_large_input_arrives(client, api, box, mib):
    data = os.urandom(MIB) * mib
    record = client.start(box, ["wc", "-c"])
    client.request("PUT", f"/v1/sandboxes/{box}/execs/{record['id']}/stdin", (200, 204), data=data)
    result = client.exec_wait(box, record["id"])
    assert result["exit_code"] == 0 and result["stdout"].strip() == str(mib * MIB)
    assert api.stream(box).socket.largest <= MIB


def test_raw_input_comes_back_whole(client, box):
    data = os.urandom(8 * MIB)
    record = client.start(box, ["cat"], max_output=0)
    client.request("PUT", f"/v1/sandboxes/{box}/execs/{record['id']}/stdin", (200, 204), data=data)
    client.exec_wait(box, record["id"])
    assert client.output(box, record["id"]).content == data
    client.problem("PUT", f"/v1/sandboxes/{box}/execs/{record['id']}/stdin", 409, data=b"more")


def test_raw_input_chunked_and_empty(client, box):
    record = client.start(box, ["cat"])
    client.request("PUT", f"/v1/sandboxes/{box}/execs/{record['id']}/stdin", (200, 204), data=iter([b"one ", b"two"]))
    assert client.exec_wait(box, record["id"])["stdout"] == "one two"
    record = client.start(box, ["cat"])
    client.request("PUT", f"/v1/sandboxes/{box}/execs/{record['id']}/stdin", (200, 204), data=b"")
    assert client.exec_wait(box, record["id"])["exit_code"] == 0


# --- ends -------------------------------------------------------------------------------------
MARKED = ("trap '' TERM; (trap '' TERM; exec -a MARK7 sleep 300) & (setsid bash -c 'exec -a MARK7 sleep 300') & "
          "(setsid setsid bash -c 'trap \"\" TERM; exec -a MARK7 sleep 300' &) ; exec -a MARK7b sleep 300")


def marks(container):
    return [line for line in container.processes() if line[0].startswith("MARK7")]


def test_b07_a_timeout_kills_the_whole_tree(client, api, box):
    container = api.node.container(box)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.exec, box, ["bash", "-c", MARKED], timeout=3)
        wait_until(lambda: len(marks(container)) == 4, what="the scan finding what it looks for")
        result = answer.result()
    assert result["timed_out"] is True and result["exit_code"] is None
    wait_until(lambda: not marks(container), what="nothing being left")
    assert client.exec(box, ["true"])["exit_code"] == 0


def test_b08_a_background_child_does_not_hold_the_answer(client, api, box):
    container = api.node.container(box)
    result = client.exec(box, "sleep 61 & echo $!", timeout=20)
    assert result["stdout"].strip().isdigit() and result["exit_code"] == 0 and result["timed_out"] is False
    assert ["sleep", "61"] in container.processes()  # and is left alone
    client.exec(box, ["kill", result["stdout"].strip()])
    result = client.exec(box, "sleep 300 & wait", timeout=0.5)
    assert result["timed_out"] is True


def test_a_background_server_outlives_its_exec(client, box):
    started = client.exec(box, "python3 -m http.server 8123 >/dev/null 2>&1 & echo $!")
    assert client.exec(box, "for i in $(seq 100); do python3 -c 'import urllib.request as u; "
                            "print(u.urlopen(\"http://127.0.0.1:8123/\").status)' 2>/dev/null && exit; sleep 0.1; done; exit 1"
                       )["stdout"] == "200\n"
    client.exec(box, ["kill", started["stdout"].strip()])


def test_b27_arguments_up_to_what_linux_takes(client, box):
    long = "x" * 131071
    assert client.exec(box, ["sh", "-c", 'printf %s "$1" | wc -c', "sh", long])["stdout"].strip() == "131071"
    client.exec_problem(box, ["true", long + "x"], 413, "argument_too_long")
    client.exec_problem(box, ["true"] + ["y" * 100000] * 30, 413, "argument_too_long")
    client.exec_problem(box, ["true"], 413, "argument_too_long", env={"A": "z" * 131072})
    script = "exit 7 #" + "s" * 20480
    assert client.exec(box, script)["exit_code"] == 7
    assert client.exec(box, ["python3", "-c", "import sys; print(sys.argv[1:])", "a b", "", "'\"\\", "\n", "日本"]
                       )["stdout"] == repr(["a b", "", "'\"\\", "\n", "日本"]) + "\n"


def test_b37_pid_1_reaps(client, api):
    client.create("reaping")
    for _ in range(3):
        client.exec("reaping", "i=0; while [ $i -lt 200 ]; do (sh -c 'sleep 0.01 &' ); i=$((i+1)); done; sleep 0.2", timeout=100)
    wait_until(lambda: client.exec("reaping", "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l")["stdout"] == "0\n",
               what="no zombies")
    client.delete("reaping")


def test_many_at_once_and_the_answers_are_their_own(client, box):
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda i: client.exec(box, ["sh", "-c", f"sleep 0.1; echo {i}; exit {i % 200}"]), range(100)))
    assert [(result["stdout"], result["exit_code"]) for result in results] == [(f"{i}\n", i % 200) for i in range(100)]
    assert client.sandbox(box)["running_execs"] == 0


def test_b13_answers_are_json_whatever_the_output(client, box):
    response = client.request("POST", f"/v1/sandboxes/{box}/execs", 200,
                              json={"cmd": ["printf", "\\001\\033[31m\\342\\200\\250\\\\\"\\177"]})
    strict = json.loads(response.content.decode("utf-8"))
    assert text_of(strict) == b'\x01\x1b[31m\xe2\x80\xa8\\"\x7f'
