"""Bytes and numbers at real size on gVisor: B01, B03, B04, B05, B07, B08, B24, B27, B28, and file names (B52). On runc it is the
conformance tests that say so."""

import base64
import hashlib
import os
import random

import pytest

from server import SOAK, wait_until

MIB = 1 << 20


@pytest.fixture(scope="module")
def box(cloud):
    record = cloud.client().create(ttl=3600, resources={"storage": "8Gi"}, runtime_class="gvisor")
    yield record["id"]
    cloud.client().delete(record["id"], expect=(202, 204))


@pytest.fixture(scope="module")
def random_64_mib():
    return random.Random(7).randbytes(64 * MIB)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def test_64_mib_through_files(client, box, random_64_mib):
    client.put(box, "data", random_64_mib, expect=201)
    inside = client.exec(box, ["sha256sum", "data"])["stdout"].split()[0]
    assert inside == digest(random_64_mib)
    assert digest(client.read(box, "data")) == inside
    part = client.read(box, "data", 206, headers={"Range": f"bytes={33 * MIB + 1}-{34 * MIB}"})
    assert part == random_64_mib[33 * MIB + 1:34 * MIB + 1]


def test_64_mib_through_stdin_and_stdout(client, box, random_64_mib):
    started = client.start(box, ["cat"])
    done = client.request("PUT", f"/v1/sandboxes/{box}/execs/{started['id']}/stdin", 200, data=random_64_mib,
                          headers={"Content-Type": "application/octet-stream"})
    assert done.status_code == 200
    result = client.exec_wait(box, started["id"])
    assert (result["exit_code"], result["stdout_bytes"]) == (0, 64 * MIB)
    assert digest(client.output(box, started["id"]).content) == digest(random_64_mib)


@pytest.mark.parametrize("mib", [40, 44, 48, 50])
def test_b05_large_stdin(client, box, random_64_mib, mib):
    started = client.start(box, ["wc", "-c"])
    client.request("PUT", f"/v1/sandboxes/{box}/execs/{started['id']}/stdin", 200, data=random_64_mib[:mib * MIB],
                   headers={"Content-Type": "application/octet-stream"})
    assert client.exec_wait(box, started["id"])["stdout"] == f"{mib * MIB}\n"


def test_b04_uploads_are_whole(client, sandbox):
    """In soak 500 MiB twenty times, as in the report; else smaller."""
    size, rounds = (500 * MIB, 20) if SOAK else (96 * MIB, 2)
    for number in range(rounds):
        data = os.urandom(MIB) * (size // MIB - 1) + os.urandom(MIB + 1)
        client.put(sandbox, "big", data, timeout=600)
        assert client.exec(sandbox, ["sha256sum", "big"])["stdout"].split()[0] == digest(data), number


def test_b01_a_large_output_is_never_cut(client, box):
    for _ in range(20 if SOAK else 5):
        result = client.exec(box, ["seq", "1", "2000000"], max_output=64)
        assert (result["exit_code"], result["stdout_bytes"], result["truncated"]) == (0, 14888896, True)
        output = client.output(box, result["id"]).content
        assert len(output) == 14888896 and output.endswith(b"\n2000000\n")


def test_b03_false_is_never_true(client, box):
    codes = [client.exec(box, ["false"])["exit_code"] for _ in range(200)]
    assert codes == [1] * 200


def test_b07_a_timeout_ends_the_whole_tree(client, box):
    script = """trap '' TERM
        (trap '' TERM; exec -a MARK7 sleep 300) &
        setsid bash -c 'exec -a MARK7 sleep 300' &
        exec -a MARK7b sleep 300"""
    look = ["sh", "-c", r"grep -laE '^MARK7' /proc/[0-9]*/cmdline; true"]
    started = client.start(box, ["bash", "-c", script], timeout=3)
    wait_until(lambda: len(client.exec(box, look)["stdout"].split()) == 3, 10, "the scan finding all three")
    result = client.exec_wait(box, started["id"])
    assert (result["timed_out"], result["exit_code"], result["error"]["code"]) == (True, None, "timeout")
    assert client.exec(box, look)["stdout"] == ""
    assert client.exec(box, ["true"])["exit_code"] == 0


def test_b08_a_background_child_does_not_hold_the_answer(client, box):
    result = client.exec(box, "sleep 60 & echo hi", timeout=30)
    assert (result["stdout"], result["exit_code"], result["timed_out"]) == ("hi\n", 0, False)
    result = client.exec(box, "sleep 300 & wait", timeout=1)
    assert result["timed_out"] and result["duration"] < 60


def test_b24_dollars_are_literal(client, box):
    env = {"A": "x", "B": "$(A)", "C": "$$D", "E": "p$$", "F": "$(NOPE)", "G": "a$b"}
    for name, value in env.items():
        assert client.exec(box, ["printenv", name], env=env)["stdout"] == value + "\n"
    assert client.exec(box, ["printf", "%s", "$(A)"])["stdout"] == "$(A)"


def test_b27_long_arguments(client, box):
    assert client.exec(box, ["sh", "-c", "printf %s \"$1\" | wc -c", "sh", "a" * 131071])["stdout"].strip() == "131071"
    assert "cmd" in client.exec_problem(box, ["echo", "a" * 131072], 413, "argument_too_long")["detail"]
    script = "# " + "x" * 20000 + "\necho fine"
    assert client.exec(box, script)["stdout"] == "fine\n"


def test_b28_bytes_that_are_no_text(client, box):
    data = os.urandom(65536)
    client.put(box, "raw", data)
    result = client.exec(box, ["cat", "raw"])
    assert result["stdout_encoding"] == "base64"
    assert client.output(box, result["id"]).content == data
    assert client.exec(box, ["printf", "a\\342\\202\\254b"])["stdout"] == "a€b"


NAMES = ["-rf", "--checkpoint-action=exec=sh x", "a b", " lead", "trail ", "a\nb", "a\tb", "[x]", "*", "q\"'$(id)`", "back\\slash",
         "c:d", "100%", "%41", "a+b", "a&b=c", "a?b#c", "日本", "e\u0301", "\u00e9", b"\xff\xfe", "n" * 255, "~", "d/e f/g"]


def test_file_names(client, box):
    for number, name in enumerate(NAMES):
        where = b"names/" + name if isinstance(name, bytes) else "names/" + name
        client.put(box, where, b"%d" % number, expect=201)
        assert client.read(box, where) == b"%d" % number
    raw = client.exec(box, "cd names && find . -type f -print0 | base64 -w0")["stdout"]
    inside = {name[2:] for name in base64.b64decode(raw).split(b"\0") if name}
    wanted = {name if isinstance(name, bytes) else name.encode() for name in NAMES}
    assert inside == wanted
    listed = set()
    for item in client.tree(box, "names")["items"]:
        if item["type"] == "file":
            path = base64.b64decode(item["path"]) if item.get("name_encoding") == "base64" else item["path"].encode()
            listed.add(path)
    assert {os.path.relpath(path, b"names") if path.startswith(b"names/") else path for path in listed} == wanted
    client.request("DELETE", client.file_url(box, "names", "&recursive=true"), 204)
    assert client.exec(box, "test -e names")["exit_code"] == 1
