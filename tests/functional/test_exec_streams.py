"""Output as it comes: events over NDJSON and SSE, resumed, cut, scrubbed. B01, B02, B03, B07, B08, B16, B31, B34, B38, B53 on a stream."""

import json
import socket
import time

import pytest
import requests

from events import TYPES, check_whole, data_of, follow, joined, stream
from server import SOAK, open_request, reset, wait_until

OPTIONS = ("--output-quota", "8Mi")  # so that a slow reader has the command wait for him


@pytest.fixture(scope="module")
def box(cloud):
    cloud.client().create("streams", ttl=3600)
    return "streams"


@pytest.mark.parametrize("kind", TYPES)
def test_a_stream(client, box, kind):
    events = list(stream(client, box, "echo out; echo err >&2; sleep 0.2; echo more; exit 3", kind))
    check_whole(events)
    assert joined(events) == b"out\nmore\n" and joined(events, "stderr") == b"err\n"
    result = events[-1]["result"]
    assert result["exit_code"] == 3 and result["state"] == "exited" and result["stdout_bytes"] == 9
    assert "stdout" not in result and "stderr" not in result
    assert events[-1]["id"].endswith(":9:4")
    again = list(follow(client, box, result["id"], kind=kind))
    check_whole(again)
    assert joined(again) == b"out\nmore\n" and again[-1]["result"] == result


def test_true_is_told_at_once(client, box):
    events = list(stream(client, box, ["true"]))
    assert [event["type"] for event in events] == ["started", "exit"] and events[-1]["result"]["exit_code"] == 0


def test_b03_false_is_1_each_time(client, box):
    assert {list(stream(client, box, ["false"]))[-1]["result"]["exit_code"] for _ in range(200)} == {1}


def test_problems_are_no_streams(client, box):
    """What the request was wrong about is answered as ever: no 200 comes before it is known."""
    headers = {"Accept": TYPES["ndjson"]}
    url = f"/v1/sandboxes/{box}/execs"
    client.problem("POST", url, 422, "workdir_not_found", json={"cmd": ["true"], "workdir": "/no/such"}, headers=headers)
    client.problem("POST", url, 400, "invalid_field", json={"cmd": []}, headers=headers)
    client.problem("GET", f"{url}/999999", 404, "not_found", headers=headers)
    number = client.exec(box, ["true"])["id"]
    for last in ("", "1", "1:2", "1:2:3:4", "a:0:0", "1:-2:0", "1:2:3 "[:5] + "x"):
        client.problem("GET", f"{url}/{number}", 400, "invalid_field", headers={**headers, "Last-Event-ID": last})
    for last in ("1:1:0", "7:0:1", f"1:{1 << 62}:0"):  # beyond what there was
        problem = client.problem("GET", f"{url}/{number}", 400, "invalid_field", headers={**headers, "Last-Event-ID": last})
        assert "Last-Event-ID" in problem["detail"] and "there are 0 bytes" in problem["detail"], problem
    assert list(stream(client, box, ["no-such-program"]))[-1]["result"]["error"]["code"] == "command_not_found"


def test_the_order_of_accept_counts(client, box):
    for accept, kind in (("application/json, text/event-stream", "application/json"), ("*/*", "application/json"),
                         ("text/event-stream;q=0.9, application/json", TYPES["sse"]), ("text/html, application/x-ndjson", TYPES["ndjson"])):
        response = client.request("POST", f"/v1/sandboxes/{box}/execs", 200, json={"cmd": ["true"]}, headers={"Accept": accept})
        assert response.headers["Content-Type"] == kind


def test_b01_every_byte_through_a_slow_reader(client, box):
    """1 MB/s; the journal keeps 8 MiB of the 15: the command waits rather than that a byte is dropped."""
    for _ in range(20 if SOAK else 2):
        total, last, begin = 0, b"", time.monotonic()
        for event in stream(client, box, ["seq", "1", "2000000"]):
            if event["type"] == "stdout":
                assert event["offset"] == total
                data = data_of(event)
                total, last = total + len(data), (last + data)[-8:]
                time.sleep(max(0, begin + total / 1e6 - time.monotonic()))  # the reader's pace
        assert total == 14888896 and last == b"2000000\n" and event["result"]["exit_code"] == 0
        assert event["type"] == "exit" and event["result"]["stdout_bytes"] == total


def test_resumed_behind_every_event(client, box):
    """Whatever the last event was that the client has had, it gets the rest, once."""
    command = "for i in 1 2 3 4 5; do echo line $i; echo to err $i >&2; sleep 0.02; done; head -c 200000 /dev/zero | tr '\\0' x; exit 5"
    events = list(stream(client, box, command))
    check_whole(events)
    number = events[-1]["result"]["id"]
    out, err = joined(events), joined(events, "stderr")
    assert out.startswith(b"line 1\n") and len(out) == 200035
    for event in events:
        sequence, at_out, at_err = (int(part) for part in event["id"].split(":"))
        rest = list(follow(client, box, number, event["id"]))
        assert b"".join(data_of(one) for one in rest if one["type"] == "stdout") == out[at_out:]
        assert b"".join(data_of(one) for one in rest if one["type"] == "stderr") == err[at_err:]
        assert int(rest[0]["id"].split(":")[0]) == sequence + 1 and rest[-1]["result"]["exit_code"] == 5
        assert rest[0]["type"] != "started"


@pytest.mark.parametrize("kind", TYPES)
def test_the_client_is_cut_and_comes_again(server, client, box, kind):
    """After any number of bytes: the whole events it has had, and the rest, are everything."""
    command = "for i in $(seq 1 30); do echo line $i; sleep 0.01; done; exit 4"
    wanted = b"".join(b"line %d\n" % i for i in range(1, 31))
    for cut in range(1, 2000, 50 if SOAK else 300):
        body = json.dumps({"cmd": ["sh", "-c", command]}).encode()
        sock = open_request(server.port, "POST", f"/v1/sandboxes/{box}/execs", body, {"Accept": TYPES[kind]})
        got = b""
        while b"\r\n\r\n" not in got:
            got += sock.recv(65536)
        location = next(line.split(b": ")[1].decode() for line in got.split(b"\r\n") if line.startswith(b"Location"))
        head = got.index(b"\r\n\r\n") + 4
        while len(got) < head + cut and (piece := sock.recv(min(4096, head + cut - len(got)))):
            got += piece
        reset(sock)
        lines = [line.removeprefix(b"data: ") for line in got[head:].split(b"\n")[:-1]]
        had = [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]
        last = had[-1]["id"] if had else None
        rest = list(follow(client, box, location.split("/")[-1], last, kind))
        assert joined(had + rest) == wanted, (cut, had, rest)
        assert rest[-1]["result"]["exit_code"] == 4


def test_a_character_in_two_pieces_is_text(client, box):
    events = list(stream(client, box, r"printf 'a\342'; sleep 0.3; printf '\202'; sleep 0.3; printf '\254b'"))
    assert joined(events) == "a€b".encode()
    assert {event["encoding"] for event in events if event["type"] == "stdout"} == {"utf-8"}


def test_bytes_that_are_no_text(client, box):
    events = list(stream(client, box, r"printf 'text'; sleep 0.2; printf '\377\376\0x'; sleep 0.2; printf '\342\202'"))
    assert joined(events) == b"text\xff\xfe\0x\xe2\x82"
    assert [event["encoding"] for event in events if event["type"] == "stdout"] == ["utf-8", "base64", "base64"]


def test_b08_a_child_in_the_background_holds_nothing_up(client, box):
    events = list(stream(client, box, "sleep 60 & echo hi", timeout=20))
    assert joined(events) == b"hi\n" and events[-1]["result"]["exit_code"] == 0 and not events[-1]["result"]["timed_out"]


def test_b07_a_timeout_is_told(client, box):
    events = list(stream(client, box, "echo before; trap '' TERM; sleep 300 & wait", timeout=0.5))
    result = events[-1]["result"]
    assert events[-1]["type"] == "exit" and result["timed_out"] and result["exit_code"] is None and joined(events) == b"before\n"


def test_b31_a_heartbeat_in_silence(client, box):
    events = list(stream(client, box, ["sleep", "11"]))
    assert [event["type"] for event in events] == ["started", "heartbeat", "exit"]


def test_watchers(client, box):
    """Several at once, from the start and from later: each gets everything."""
    first = stream(client, box, "for i in $(seq 1 50); do echo $i; sleep 0.02; done")
    begin = first.until("started")
    others = [follow(client, box, begin["exec"]) for _ in range(4)]
    wanted = b"".join(b"%d\n" % i for i in range(1, 51))
    for one in others:
        assert joined(list(one)) == wanted


def test_a_reader_that_stands_still_is_left_behind(server, client, api, box):
    """The command waits for it for 30 s and then goes on; the reader is told when it reads on, and may begin again."""
    slow = stream(client, box, "seq 1 4000000; touch through", on_disconnect="keep")
    number = slow.until("started")["exec"]
    seen = []

    def stands_still():
        seen.append(client.get(f"/v1/sandboxes/{box}/execs/{number}")["stdout_bytes"])
        return len(seen) > 50 and seen[-1] == seen[-50] > 0
    wait_until(stands_still, what="the command waiting for its reader")
    assert client.request("HEAD", client.file_url(box, "through")).status_code == 404
    assert client.exec(box, ["true"])["exit_code"] == 0  # only that command waits
    assert client.exec_wait(box, number)["stdout_bytes"] == 30888896
    events = slow.all()
    assert events[-1]["type"] == "error" and events[-1]["error"]["code"] == "slow_reader"
    rest = list(follow(client, box, number, events[-1]["id"]))
    assert "gap" in [event["type"] for event in rest] and rest[-1]["result"]["exit_code"] == 0
    at = int(events[-1]["id"].split(":")[1])
    for event in rest[:-1]:
        if event["type"] == "gap":
            assert event["stream"] == "stdout" and event["from"] == at
            at = event["to"]
        else:
            assert event["offset"] == at
            at += len(data_of(event))
    assert at == 30888896


# --- raw output that is followed ------------------------------------------------------------------------------------------
def followed(client, box, number, query="", **options):
    return client.request("GET", f"/v1/sandboxes/{box}/execs/{number}/output?follow=true{query}", stream=True, **options)


def test_b34_raw_output_to_the_end(client, box):
    record = client.start(box, "printf 'a\\377b'; echo err >&2; while [ ! -e more ]; do sleep 0.02; done; echo end")
    response = followed(client, box, record["id"])
    assert response.raw.read(3) == b"a\xffb"
    client.put(box, "more", b"")
    assert response.raw.read() == b"end\n"
    number = record["id"]
    assert followed(client, box, number).content == b"a\xffbend\n"
    assert followed(client, box, number, "&offset=3").content == b"end\n"
    assert followed(client, box, number, "&offset=7").content == b"" == followed(client, box, number, "&offset=99").content
    assert followed(client, box, number, "&stream=stderr").content == b"err\n"
    client.request("DELETE", client.file_url(box, "more"), 204)


def test_raw_output_is_not_followed_without_sense(client, box):
    number = client.exec(box, ["true"])["id"]
    for query in ("follow=true&limit=3", "follow=yes", "follow=true&stream=both"):
        client.problem("GET", f"/v1/sandboxes/{box}/execs/{number}/output?{query}", 400, "invalid_field")
    client.problem("GET", f"/v1/sandboxes/{box}/execs/99999/output?follow=true", 404, "not_found")


def test_an_old_client_gets_it_without_chunks(server, client, box):
    number = client.exec(box, ["seq", "1", "20000"], max_output=0)["id"]
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
        sock.sendall(f"GET /v1/sandboxes/{box}/execs/{number}/output?stream=stdout&follow=true HTTP/1.0\r\n"
                     f"Host: 127.0.0.1:{server.port}\r\n\r\n".encode())
        answer = b""
        while more := sock.recv(65536):
            answer += more
    head, body = answer.split(b"\r\n\r\n", 1)
    assert b" 200 " in head.splitlines()[0] and b"chunked" not in head.lower()
    assert body == b"".join(b"%d\n" % n for n in range(1, 20001))


def test_b01_raw_output_through_a_slow_reader(client, box):
    """Never cut short, and nothing dropped although the journal keeps less than half of it."""
    number = client.start(box, ["seq", "1", "2000000"])["id"]
    total, begin = 0, time.monotonic()
    response = followed(client, box, number)
    for piece in response.iter_content(65536):
        total += len(piece)
        time.sleep(max(0, begin + total / 4e6 - time.monotonic()))
    assert total == 14888896 and client.exec_wait(box, number)["exit_code"] == 0


def test_b53_raw_output_that_was_dropped_is_not_whole(client, box):
    """From the start of what lost its middle: the body breaks off there; inside of it: 416."""
    number = client.exec(box, ["seq", "1", "2000000"], max_output=0)["id"]
    sizes = client.output(box, number).headers["X-Output-Total"], len(client.output(box, number).content)
    assert sizes == ("14888896", 4 << 20)
    with pytest.raises(requests.RequestException):
        followed(client, box, number).content
    client.problem("GET", f"/v1/sandboxes/{box}/execs/{number}/output?follow=true&offset={5 << 20}", 416)
    assert followed(client, box, number, f"&offset={14888896 - 8}").content == b"2000000\n"


# --- the stream to the agent --------------------------------------------------------------------------------------------
def test_b01_b02_b16_cut_at_every_frame(client, api, box):
    """Between the server and the agent, after each few hundred bytes: joined again, and the true result comes."""
    command = "seq 1 2000; echo err >&2; sleep 0.1; seq 2001 3000; exit 9"
    wanted = b"".join(b"%d\n" % i for i in range(1, 3001))
    for count in range(1, 16000, 500 if SOAK else 2500):
        api.stream(box).cut_after(count, lambda one: one.reset())
        events = list(stream(client, box, command))
        check_whole(events)
        assert joined(events) == wanted and joined(events, "stderr") == b"err\n", count
        assert events[-1]["result"]["exit_code"] == 9


def test_b02_out_of_reach_is_stream_lost(client, api):
    """Never an exit, let alone 0; and what happened is told once the agent can be reached again."""
    client.create("lost")
    events = stream(client, "lost", "echo partial; while [ ! -e go ]; do sleep 0.05; done; exit 6")
    events.until("stdout")
    fault = api.exec_fault("lost", refuse=(503, b"no", "text/plain"), times=None)
    api.stream("lost").reset()
    last = events.all()[-1]
    assert last["type"] == "error" and last["error"]["code"] == "stream_lost" and "exit" not in {one["type"] for one in events.items}
    fault.times = fault.used
    wait_until(lambda: client.request("PUT", client.file_url("lost", "go"), data=b"").status_code in (201, 204), 60)
    number = events.items[0]["exec"]
    rest = list(follow(client, "lost", number, last["id"]))
    assert rest[-1]["result"]["exit_code"] == 6 and joined(events.items + rest) == b"partial\n"
    client.delete("lost")


def test_b38_the_sandbox_dies_meanwhile(client, api):
    client.create("dies")
    events = stream(client, "dies", "echo here; exec sleep 600")
    events.until("stdout")
    api.remove("pods", "sandbox-dies")
    assert events.all()[-1]["error"]["code"] == "sandbox_gone"
    assert events.items[-1]["result"]["exit_code"] is None


# --- the server stops ---------------------------------------------------------------------------------------------------
def test_the_server_restarts_during_a_stream(fresh):
    """TERM: the stream says so and ends at once. Killed: it breaks off. Either way the rest is there, once."""
    server = fresh()
    client = server.start().client()
    client.create("again")
    for how in ("stop", "kill"):
        events = stream(client, "again", f"for i in $(seq 1 100); do echo $i; sleep 0.03; done; exit 8 # {how}", on_disconnect="keep")
        events.until("stdout")
        getattr(server, how)()
        try:
            events.all()
        except requests.RequestException:
            assert how == "kill"
        last = events.items[-1]
        assert how == "kill" or last["error"]["code"] == "stopping"
        server.start()
        had = [event for event in events.items if event["type"] != "error"]
        rest = list(follow(client, "again", events.items[0]["exec"], last["id"]))
        assert joined(had + rest) == b"".join(b"%d\n" % i for i in range(1, 101))
        assert rest[-1]["result"]["exit_code"] == 8
