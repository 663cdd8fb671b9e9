"""Streams, detached commands, signals and processes: B01, B03, B05, B07, B08, B34, B35, B37 on these paths."""

import time

import pytest

from events import TYPES, check_whole, data_of, follow, joined, stream
from server import SOAK, wait_until


def detach(client, box, cmd, **body):
    cmd = ["sh", "-c", cmd] if isinstance(cmd, str) else cmd
    return client.post(f"/v1/sandboxes/{box}/execs", {"cmd": cmd, "detach": True, **body}, 202)["id"]


def named(client, box, word):
    return [one for one in client.get(f"/v1/sandboxes/{box}/ps")["processes"] if word in " ".join(one["cmd"])]


@pytest.mark.parametrize("kind", TYPES)
def test_a_stream_of_nothing(client, box, kind):
    """Whatever runs the command."""
    events = list(stream(client, box, ["true"], kind))
    check_whole(events)
    result = events[-1]["result"]
    assert [event["type"] for event in events] == ["started", "exit"] and result["exit_code"] == 0
    again = list(follow(client, box, result["id"], kind=kind))
    assert again[-1]["result"] == result
    assert [event["type"] for event in follow(client, box, result["id"], events[0]["id"], kind)] == ["exit"]


@pytest.mark.needs("programs")
@pytest.mark.parametrize("kind", TYPES)
def test_a_stream(client, box, kind):
    events = list(stream(client, box, "echo out; echo err >&2; sleep 0.2; echo more; exit 3", kind))
    check_whole(events)
    assert joined(events) == b"out\nmore\n" and joined(events, "stderr") == b"err\n"
    assert events[-1]["result"]["exit_code"] == 3 and events[-1]["id"].endswith(":9:4")


@pytest.mark.needs("programs")
def test_b01_every_byte_through_a_slow_reader(client, box):
    for _ in range(20 if SOAK else 1):
        total, last, begin = 0, b"", time.monotonic()
        for event in stream(client, box, ["seq", "1", "2000000"]):
            if event["type"] == "stdout":
                assert event["offset"] == total
                total, last = total + len(data_of(event)), (last + data_of(event))[-8:]
                time.sleep(max(0, begin + total / (1e6 if SOAK else 4e6) - time.monotonic()))
        assert total == 14888896 and last == b"2000000\n" and event["result"]["exit_code"] == 0


@pytest.mark.needs("programs")
def test_b03_false_is_1_each_time(client, box):
    assert {list(stream(client, box, ["false"]))[-1]["result"]["exit_code"] for _ in range(200 if SOAK else 30)} == {1}


@pytest.mark.needs("programs")
def test_b34_one_line_of_5_mib(client, box):
    events = list(stream(client, box, "head -c 5242880 /dev/zero | tr '\\0' A; echo TAIL >&2; exit 3"))
    assert joined(events) == b"A" * 5242880 and joined(events, "stderr") == b"TAIL\n"
    assert events[-1]["result"]["exit_code"] == 3 and events[-1]["result"]["stdout_bytes"] == 5242880


@pytest.mark.needs("programs")
def test_b34_b07_what_came_before_a_timeout(client, box):
    events = list(stream(client, box, "printf partial; sleep 60", timeout=0.5))
    assert joined(events) == b"partial" and events[-1]["result"]["timed_out"] and events[-1]["result"]["exit_code"] is None


@pytest.mark.needs("programs")
def test_b05_b08_raw_input_to_a_stream(client, box):
    """The input goes on another connection; a child in the background does not hold the end up."""
    events = stream(client, box, "wc -c; sleep 60 & echo end", stdin_encoding="raw")
    number = events.until("started")["exec"]
    client.request("PUT", f"/v1/sandboxes/{box}/execs/{number}/stdin", 200, data=b"x" * 3000000)
    assert joined(events.all()) == b"3000000\nend\n" and events.items[-1]["result"]["exit_code"] == 0
    client.request("DELETE", f"/v1/sandboxes/{box}/execs/{number}", 204)


@pytest.mark.needs("programs")
def test_b35_a_detached_command_outlives_its_request(client, box):
    number = detach(client, box, "while [ ! -e go ]; do sleep 0.02; done; echo lived; exit 7")
    client.session.close()
    client.put(box, "go", b"")
    assert client.exec_wait(box, number)["stdout"] == "lived\n"
    assert joined(list(follow(client, box, number))) == b"lived\n"
    client.request("DELETE", client.file_url(box, "go"), 204)


@pytest.mark.needs("programs")
def test_b07_delete_leaves_nothing(client, box):
    number = detach(client, box, ["bash", "-c", "trap '' TERM; (trap '' TERM; exec -a GONE1 sleep 300) & "
                                  "(setsid bash -c 'trap \"\" TERM; exec -a GONE2 sleep 300') & ( (exec -a GONE3 sleep 300) & ); "
                                  "exec -a GONE4 sleep 300"])
    wait_until(lambda: all(named(client, box, f"GONE{index} ") for index in range(1, 5)))
    assert {one["exec"] for one in named(client, box, "GONE")} == {number}
    client.request("DELETE", f"/v1/sandboxes/{box}/execs/{number}?grace=0.2", 204)
    assert not named(client, box, "GONE") and client.exec_wait(box, number)["signal"] == "KILL"


@pytest.mark.needs("programs")
def test_signals(client, box):
    number = detach(client, box, "trap 'echo got; exit 9' USR1; echo ready; while :; do sleep 0.05; done")
    wait_until(lambda: client.get(f"/v1/sandboxes/{box}/execs/{number}")["stdout"] == "ready\n")
    client.request("POST", f"/v1/sandboxes/{box}/execs/{number}/signal", 204, json={"signal": "USR1"})
    record = client.exec_wait(box, number)
    assert record["exit_code"] == 9 and record["stdout"] == "ready\ngot\n"


@pytest.mark.needs("programs")
def test_b37_orphans_of_a_detached_command_are_reaped(client, box):
    """Hundreds of children whose parents are gone leave no zombie behind."""
    number = detach(client, box, "i=0; while [ $i -lt 300 ]; do (sh -c 'sleep 0.01 &'); i=$((i+1)); done; echo done")
    assert client.exec_wait(box, number)["stdout"] == "done\n"
    wait_until(lambda: client.get(f"/v1/sandboxes/{box}/ps")["processes"] == [], what="no process, zombie or not")
