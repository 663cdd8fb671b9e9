"""What commands read and write: B01, B05, B06, B34."""

import base64
import os

import pytest

from server import SOAK, text_of

pytestmark = pytest.mark.needs("programs")
MIB = 1 << 20


# --- output -----------------------------------------------------------------------------
def test_b01_every_byte_of_a_large_output(client, box):
    for _ in range(20 if SOAK else 2):
        result = client.exec(box, ["seq", "1", "2000000"], max_output=1024)
        assert result["exit_code"] == 0 and result["stdout_bytes"] == 14888896 and result["truncated"] is True
        raw = client.output(box, result["id"]).content
        assert len(raw) == 14888896 and raw.endswith(b"\n2000000\n") and raw.startswith(b"1\n2\n")


@pytest.mark.parametrize("size", [size + more for size in [2**20, 2**22] + ([2**25, 2**27] if SOAK else []) for more in (-1, 0, 1)])
def test_b01_sizes_around_powers_of_two(client, box, size):
    result = client.exec(box, ["head", "-c", str(size), "/dev/zero"], max_output=0)
    assert result["exit_code"] == 0 and result["stdout_bytes"] == size


def test_b01_a_slow_reader_gets_all(client, box):
    result = client.exec(box, ["seq", "1", "400000"], max_output=0)
    response = client.request("GET", f"/v1/sandboxes/{box}/execs/{result['id']}/output?stream=stdout", 200, stream=True)
    assert b"".join(response.iter_content(4096)) == b"".join(b"%d\n" % i for i in range(1, 400001))


def test_output_by_offset(client, box):
    result = client.exec(box, "seq 1 1000; echo bad >&2")
    whole = client.output(box, result["id"]).content
    assert client.output(box, result["id"], offset=100).content == whole[100:]
    assert client.output(box, result["id"], offset=len(whole)).content == b""
    assert client.output(box, result["id"], "stderr").content == b"bad\n"
    client.problem("GET", f"/v1/sandboxes/{box}/execs/{result['id']}/output?stream=what", 400)
    client.problem("GET", f"/v1/sandboxes/{box}/execs/{result['id']}/output?offset=-1", 400)


def test_b34_over_the_limit_head_and_tail_are_kept(client, box):
    result = client.exec(box, "head -c 20000000 /dev/zero | tr '\\0' A; printf END; echo TAIL >&2; exit 3", max_output=1000)
    assert result["exit_code"] == 3 and result["truncated"] is True
    assert result["stdout_bytes"] == 20000003 and result["stderr"] == "TAIL\n" and result["stderr_omitted"] is None
    assert result["stdout_omitted"] == {"offset": 500, "bytes": 20000003 - 1000}
    assert result["stdout"].startswith("A" * 500) and result["stdout"].endswith("A" * 497 + "END")
    default = client.exec(box, "head -c 3000000 /dev/zero | tr '\\0' A")
    assert default["truncated"] is True and len(default["stdout"]) in range(MIB, MIB + 200)


def test_b34_output_before_a_timeout_is_kept(client, box):
    result = client.exec(box, "printf partial; sleep 60", timeout=0.5)
    assert result["timed_out"] is True and result["exit_code"] is None
    assert result["stdout"] == "partial" and result["error"]["code"] == "timeout"


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
def test_b05_large_input_arrives(client, box, mib):
    record = client.start(box, ["wc", "-c"])
    client.feed(box, record["id"], os.urandom(MIB) * mib)
    result = client.exec_wait(box, record["id"])
    assert result["exit_code"] == 0 and result["stdout"].strip() == str(mib * MIB)


def test_raw_input_comes_back_whole(client, box):
    data = os.urandom(64 * MIB)
    record = client.start(box, ["cat"], max_output=0)
    client.feed(box, record["id"], data)
    client.exec_wait(box, record["id"])
    assert client.output(box, record["id"]).content == data
    client.problem("PUT", f"/v1/sandboxes/{box}/execs/{record['id']}/stdin", 409, data=b"more")


def test_raw_input_chunked_and_empty(client, box):
    record = client.start(box, ["cat"])
    client.feed(box, record["id"], iter([b"one ", b"two"]))
    assert client.exec_wait(box, record["id"])["stdout"] == "one two"
    record = client.start(box, ["cat"])
    client.feed(box, record["id"], b"")
    assert client.exec_wait(box, record["id"])["exit_code"] == 0
