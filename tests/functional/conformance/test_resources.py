"""What a sandbox may use, told to its programs; and what a command has used."""

import json
import math
from datetime import datetime

import pytest

COUNTS = ("GOMAXPROCS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS", "CARGO_BUILD_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL", "PYTHON_CPU_COUNT",
          "DOTNET_PROCESSOR_COUNT")
MIB = 1 << 20
pytestmark = pytest.mark.needs("programs")


def environment(client, box, **options):
    """Names and values, as a command sees them."""
    return dict(line.split("=", 1) for line in client.exec(box, ["env"], **options)["stdout"].splitlines() if "=" in line)


def test_a_program_can_read_what_its_sandbox_may_use(client, box):
    record = client.sandbox(box)
    path = environment(client, box)["PODSANDBOX_INFO"]
    assert path in ("/run/sandbox.json", "/tmp/sandbox.json")
    info = json.loads(client.exec(box, ["cat", path])["stdout"])
    assert (info["id"], info["uid"], info["workdir"]) == (box, record["uid"], "/workspace")
    assert info["limits"] == {name: limit["value"] for name, limit in record["limits"].items()}
    told, known = (datetime.fromisoformat(text) for text in (info["expires"], record["expires"]))
    assert abs((told - known).total_seconds()) < 60
    assert info["created"] == record["created"]
    assert client.exec(box, ["stat", "-c", "%a", path])["stdout"] == "444\n"


def test_tools_are_told_of_as_many_processors_as_there_are_for_them(client, box):
    limit = client.sandbox(box)["limits"]["cpu"]["value"]
    seen = environment(client, box)
    if limit is None:
        assert not {*COUNTS, "MAKEFLAGS"} & set(seen)
        return
    count = str(max(1, math.ceil(limit)))
    assert {name: seen[name] for name in COUNTS} == dict.fromkeys(COUNTS, count) and seen["MAKEFLAGS"] == f"-j{count}"
    assert client.exec(box, ["nproc"])["stdout"].strip() <= count


def test_a_caller_knows_better(client):
    record = client.create(env={"GOMAXPROCS": "9", "PODSANDBOX_INFO": "/elsewhere"})
    seen = environment(client, record["id"], env={"MAKEFLAGS": "-k"})
    assert (seen["GOMAXPROCS"], seen["PODSANDBOX_INFO"], seen["MAKEFLAGS"]) == ("9", "/elsewhere", "-k")
    client.delete(record["id"], expect=(202, 204))


def test_what_a_command_has_used(client, box):
    busy = "import time\nheld = bytearray(64 << 20)\nwhile time.process_time() < 0.3: pass"
    result = client.exec(box, ["python3", "-c", busy])
    assert result["exit_code"] == 0 and result["oom_killed"] in (False, None)
    assert 0.3 <= result["cpu_time"] and 64 * MIB <= result["max_rss"] < 1024 * MIB
    idle = client.exec(box, ["true"])
    assert idle["cpu_time"] < 0.3 and 0 < idle["max_rss"] < 64 * MIB


def test_both_totals_of_what_was_left_out(client, box):
    result = client.exec(box, "seq 1 20000; seq 1 30000 >&2", max_output=1000)
    assert result["truncated"] and (result["stdout_bytes"], result["stderr_bytes"]) == (108894, 168894)
    for name, total in (("stdout", 108894), ("stderr", 168894)):
        omitted = result[f"{name}_omitted"]
        assert len(result[name]) + omitted["bytes"] == total and omitted["offset"] > 0
    result = client.exec(box, "seq 1 20000; echo x >&2", max_output=1000)
    assert result["truncated"] and result["stderr_omitted"] is None and result["stderr_bytes"] == 2
