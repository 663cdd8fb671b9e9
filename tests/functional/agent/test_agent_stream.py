"""The stream: who may speak, what survives its end, and what a peer that lies gets."""

import hashlib
import os
import random
import struct
import subprocess
import time

import pytest

import frames
from conftest import BINARY, wait_for
from frames import StreamClosed


def frame_or_end(client, timeout=20):
    try:
        return client.frame_of(0, timeout)
    except StreamClosed:
        return None


# --- hello


def test_first_hello_sets_the_token(agent):
    first = agent.client()
    hello = first.hello(uid="u-1", server="test")
    assert hello["version"] == 1 and hello["fresh"] == 1 and hello["configured"] == 0
    assert hello["deadline_ms"] == 0 and "blob" not in hello
    wrong = agent.client()
    wrong.send(0, "HELLO", [("version", 1), ("token", bytes(32))])
    assert wrong.frame_of(0).name == "HELLO_NO"
    with pytest.raises(StreamClosed):
        wrong.frame_of(0)
    first.run("true")  # and the first is not disturbed
    again = agent.client()
    assert again.hello()["fresh"] == 0


def test_hello_for_another_sandbox(agents):
    """An exec by the name of a pod may reach the container before, whose token was never set, or was."""
    agent = agents("--uid", "u-1")
    ours = None
    for _ in range(2):
        for uid in ([("uid", "u-2")], [("uid", "u-11")], [("uid", "u-")], [("uid", "")], []):
            for token in (frames.TOKEN, bytes(32)):
                wrong = agent.client()
                wrong.send(0, "HELLO", [("version", 1), ("token", token), *uid])
                frame = wrong.frame_of(0)
                assert frame.name == "HELLO_NO" and frame.fields["error"] == "not_ready"
        if ours is None:
            ours = agent.client()
            assert ours.hello(uid="u-1")["fresh"] == 1  # none of them has set a token
    ours.run("true")


@pytest.mark.parametrize("fields", [[], [("version", 1)], [("version", 1), ("token", b"short")], [("token", bytes(32))],
                                    [("version", 1), ("token", bytes(33))]])
def test_bad_hello(agent, fields):
    client = agent.client()
    client.send(0, "HELLO", fields)
    frame = client.frame_of(0)
    assert frame.name == "HELLO_NO" and frame.fields["error"] == "invalid_request"
    assert agent.client().hello()["fresh"] == 1  # it has set nothing


def test_nothing_but_hello_is_heard_first(agent):
    for first in (("PING", 0), ("CONFIGURE", 0), ("OPEN", 1), ("PART", 0)):
        client = agent.client()
        client.send(first[1], first[0], [("op", 1), ("exec_id", "a"), ("arg", "true")])
        with pytest.raises(StreamClosed):
            client.frame_of(0)


def test_superseded(agent):
    first, second = agent.hello(), agent.client()
    assert second.hello()["fresh"] == 0
    bye = first.frame_of(0)
    assert bye.name == "BYE" and bye.fields["error"] == "superseded"
    with pytest.raises(StreamClosed):
        first.frame_of(0)
    assert second.run("echo", "x").out == b"x\n"


def test_silent_connections_do_not_fill_it(agent):
    silent = [agent.client() for _ in range(30)]
    ends = sum(frame_or_end_now(c) for c in silent)
    assert ends >= 20  # only a few may wait at once
    for client in silent:
        client.close()
    agent.clients.clear()
    wait_for(lambda: try_hello(agent), "a free place")


def frame_or_end_now(client):
    try:
        client.next_frame(0.2)
    except StreamClosed:
        return True
    except TimeoutError:
        return False


def try_hello(agent):
    try:
        return agent.hello()
    except (StreamClosed, OSError):
        return None


# --- configure, ping


def test_configure_and_hello_tell_it(agent):
    client = agent.hello()
    blob = os.urandom(200_000)  # more than one frame
    assert client.configure(blob=blob, blob_version=5, deadline_ms=60000)["deadline_ms"] in range(59000, 60001)
    hello = agent.client().hello()
    assert hello["blob"] == blob and hello["blob_version"] == 5 and hello["configured"] == 1
    assert 50000 < hello["deadline_ms"] <= 60000


def test_older_blob_is_refused_whole(agent):
    client = agent.hello()
    client.configure(blob=b"new", blob_version=7, env=["A=1"])
    refused = client.configure(blob=b"old", blob_version=6, env=["A=2"], deadline_ms=5000)
    assert refused["error"] == "conflict"
    assert client.configure(blob=b"same", blob_version=7).get("error") is None
    assert client.configure(blob=b"x")["error"] == "invalid_field"
    assert client.configure(blob=bytes(300_000), blob_version=9)["error"] == "too_large"
    assert client.configure(workdir="relative")["error"] == "invalid_field"
    hello = agent.client()
    seen = hello.hello()
    assert seen["blob"] == b"same" and seen["deadline_ms"] == 0
    assert hello.run("sh", "-c", "echo $A").out == b"1\n"


def test_configure_adds_one_variable(agent):
    client = agent.hello()
    client.configure(env=["A=1", "B=1"])
    client.send(0, "CONFIGURE", [("seq", 1), ("env", "B=2"), ("env", "C=3")])
    client.frame_of(0)
    assert client.run("sh", "-c", "echo $A $B $C").out == b"1 2 3\n"


def test_ping(agent):
    client = agent.hello()
    payload = os.urandom(100)
    client.send(0, "PING", payload=payload)
    frame = client.frame_of(0)
    assert frame.name == "PONG" and frame.payload == payload


def test_unknown_frames_fields_and_channels_are_skipped(client):
    client.send_raw(frames.pack_frame(0, 99, b"future") + frames.pack_frame(77, 98, b"x") + frames.pack_frame(5, 250))
    client.data(4242, 0, 0, b"nobody")
    client.credit(4242, 1, 0, 10)
    for kind in ("CANCEL", "COMMIT", "SIGNAL", "END"):
        client.send(4242, kind, payload=b"" if kind != "END" else bytes(9))
    future = struct.pack("<HI", 60000, 3) + b"new"
    channel = client.next_channel
    client.next_channel += 1
    client.send(channel, "OPEN", payload=future + frames.pack_fields([("op", 1), ("exec_id", "f"), ("arg", "true")]) + future)
    run = frames.Run(client, channel, "f")
    assert run.finish()["exit_code"] == 0
    assert client.request("USAGE") is not None
    unknown = client.next_channel
    client.next_channel += 1
    client.send(unknown, "OPEN", [("op", 200)])
    assert client.frame_of(unknown).fields["error"] == "not_supported"


# --- deadlines


def test_deadline_ends_all(agent):
    client = agent.hello()
    client.start("sleep", "1000").wait_started()
    client.configure(deadline_ms=300)
    bye = client.frame_of(0)
    assert bye.name == "BYE" and bye.fields["error"] == "deadline"
    assert agent.wait_end() == 3


def test_deadline_without_a_stream(agent):
    client = agent.hello()
    client.start("sh", "-c", "trap '' TERM; sleep 1000").wait_started()
    client.configure(deadline_ms=500)
    client.close()
    agent.clients.clear()
    assert agent.wait_end() == 3


def test_deadline_is_renewed_and_taken_back(agent):
    client = agent.hello()
    client.configure(deadline_ms=600)
    assert client.configure(deadline_ms=60000)["deadline_ms"] > 50000
    with pytest.raises(TimeoutError):
        client.frame_of(0, timeout=0.9)
    client.configure(deadline_ms=600)
    assert client.configure(deadline_ms=0)["deadline_ms"] == 0
    with pytest.raises(TimeoutError):
        client.frame_of(0, timeout=0.9)
    assert client.run("true").result["exit_code"] == 0


def test_no_hello(agents):
    agent = agents("--first-hello", "1")
    assert agent.wait_end() == 4
    assert b"no server" in agent.process.stderr.read()


def test_TERM_ends_all_at_once(agent):
    client = agent.hello()
    client.start("sh", "-c", "trap '' TERM; setsid sleep 1000 & sleep 1000").wait_started()
    os.kill(agent.pid, 15)
    bye = client.frame_of(0)
    assert bye.name == "BYE" and bye.fields["error"] == "terminated"
    assert agent.wait_end(5) == 143


def test_TERM_from_inside_ends_nothing(agent):
    client = agent.hello()
    assert client.run("sh", "-c", "kill -TERM 1; kill -INT 1").result["exit_code"] == 0
    assert client.run("true").result["exit_code"] == 0


def test_an_end_without_a_server(agents):
    agent = agents("--end-without-server", "1")
    client = agent.hello()
    client.close()
    assert agent.wait_end() == 4
    assert b"no server has come back" in agent.process.stderr.read()


def test_without_a_server_only_kept_ones_live(agents):
    agent = agents("--without-server", "0")
    client = agent.hello()
    client.start("sleep", "1001", exec_id="kept", keep=1).wait_started()
    client.start("sleep", "1002", exec_id="dropped", grace_ms=100).wait_started()
    client.close()
    wait_for(lambda: agent.commands() == ["sleep 1001"], "an end of the one that is not kept")
    client = agent.hello()
    kept = client.start(exec_id="kept", join=1)
    kept.wait_started()
    assert kept.started["keep"] == 1 and kept.started["joined"] == 1
    run = client.start(exec_id="dropped", join=1)
    assert run.finish()["signal"] == 15 and run.started["joined"] == 1


# --- rejoining


def random_writer(size):
    return f"import os,random,sys;sys.stdout.buffer.write(random.Random(5).randbytes({size}))"


@pytest.mark.parametrize("seed", range(4))
def test_output_is_exact_over_many_cuts(agent, seed):
    size, rng = 1_500_000, random.Random(seed)
    expected = random.Random(5).randbytes(size)
    client = agent.hello()
    run = client.start("python3", "-c", random_writer(size), exec_id="big")
    received = bytearray()
    while True:
        run.window, run.hold = rng.choice([5000, 40000, 300000]), rng.choice([0, 100, 60000])
        stop = rng.randrange(1, 400000)
        run.until(lambda r: r.result or len(r.out) >= stop)
        received += run.out
        if run.result:
            break
        # What was not acknowledged may be asked for again, from anywhere.
        del received[len(received) - rng.randrange(0, min(run.hold, len(run.out)) + 1) :]
        client.close()
        agent.clients.clear()
        client = agent.hello()
        run = client.start(exec_id="big", join=1, offset_out=len(received))
    assert hashlib.sha256(received).digest() == hashlib.sha256(expected).digest()
    assert run.result["exit_code"] == 0 and run.result["total_out"] == size


def test_unacknowledged_output_is_sent_again(agent):
    client = agent.hello()
    run = client.start("sh", "-c", "echo 0123456789; cat", stdin=True, exec_id="r")
    run.auto_credit = False
    run.until(lambda r: len(r.out) == 11)
    for offset in (0, 3, 11):
        client = agent.hello()
        run = client.start(exec_id="r", join=1, offset_out=offset)
        run.auto_credit = False
        run.wait_started()
        assert run.started["joined"] == 1 and run.started["offset_out"] == offset
        if offset < 11:
            run.until(lambda r: len(r.out) == 11 - offset)
        assert run.out == b"0123456789\n"[offset:]
    again = client.start(exec_id="r", join=1, offset_out=12)
    assert again.finish()["error"] == "invalid_field"
    client.end(run.channel, 0, 0)
    assert run.finish()["exit_code"] == 0


def test_stdin_goes_on_after_a_cut(agent):
    content = os.urandom(400_000)
    client = agent.hello()
    run = client.start("sha256sum", stdin=True, exec_id="in")
    run.feed(content[:150_000] + content)  # never all of it
    run.until(lambda r: r.sender.at > 100_000)
    sent = run.sender.at
    client.close()
    agent.clients.clear()
    client = agent.hello()
    assert client is not None
    run = client.start(exec_id="in", join=1)
    run.wait_started()
    done = run.started["stdin_done"]
    assert 0 < done <= sent
    whole = (content[:150_000] + content)
    run.feed(whole, done)
    run.finish()
    assert run.out.split()[0].decode() == hashlib.sha256(whole).hexdigest()


def test_start_is_idempotent(client):
    count = client.work / "count"
    client.start("sh", "-c", f"echo x >> {count}; sleep 0.3; echo done", exec_id="same")
    second = client.start("sh", "-c", f"echo x >> {count}; sleep 0.3; echo done", exec_id="same")
    second.finish()
    assert second.started["joined"] == 1 and second.out == b"done\n"
    assert count.read_text() == "x\n"
    third = client.start("true", exec_id="same")
    third.finish()
    assert third.out == b"" and third.result["total_out"] == 5  # stored by the second already
    third.commit()
    assert client.start(exec_id="same", join=1).finish()["error"] == "not_found"


def test_result_waits_for_the_commit(agent):
    client = agent.hello()
    client.run("true", exec_id="gone")
    run = client.start("sh", "-c", "echo kept; exit 4", exec_id="kept")
    run.finish()
    client.close()
    agent.clients.clear()
    client = agent.client()
    assert client.hello()["exec_id"] == ["kept"]
    run = client.start(exec_id="kept", join=1)
    assert run.finish()["exit_code"] == 4 and run.out == b""  # acknowledged before
    run.commit()
    assert "exec_id" not in agent.client().hello()


def test_commit_before_the_result_is_nothing(client):
    run = client.start("sh", "-c", "sleep 0.2; echo x")
    run.commit()
    run.finish()
    assert run.out == b"x\n"


def test_failed_start_is_remembered(agent):
    client = agent.hello()
    client.start("no-such-program", exec_id="f").finish()
    client = agent.hello()
    run = client.start("true", exec_id="f")
    assert run.finish()["error"] == "command_not_found" and run.started["joined"] == 1


def test_exec_runs_on_without_a_stream(agent, tmp_path):
    client = agent.hello()
    client.start("sh", "-c", f"sleep 0.3; echo on > {tmp_path}/on.new; mv {tmp_path}/on.new {tmp_path}/on; echo said", exec_id="a").wait_started()
    client.close()
    wait_for((tmp_path / "on").exists, "its file")
    client = agent.hello()
    run = client.start(exec_id="a", join=1)
    run.finish()
    assert run.out == b"said\n"


def test_without_a_stream_a_foreground_exec_blocks(agent):
    client = agent.hello()
    run = client.start("sh", "-c", "head -c 3000000 /dev/zero; echo end >&2", exec_id="block")
    run.auto_credit = False
    run.wait_started()
    client.close()
    time.sleep(0.5)  # it could go on, and must not
    client = agent.hello()
    run = client.start(exec_id="block", join=1)
    run.finish()
    assert len(run.out) == 3_000_000 and run.err == b"end\n" and run.result["exit_code"] == 0


def test_without_a_stream_a_kept_exec_drops_its_oldest(agent, tmp_path):
    client = agent.hello()
    script = "import sys\nfor i in range(300000): print('%09d'%i)"
    run = client.start("python3", "-c", f"{script}\nopen('{tmp_path}/over','w')", exec_id="drop", keep=1)
    run.auto_credit = False
    run.wait_started()
    client.close()
    wait_for((tmp_path / "over").exists, "its end")
    client = agent.hello()
    run = client.start(exec_id="drop", join=1)
    run.finish()
    gap = run.started["offset_out"]
    assert gap > 1_000_000 and len(run.out) >= 900_000 and gap + len(run.out) == 3_000_000
    expected = b"".join(b"%09d\n" % i for i in range(300000))
    assert bytes(run.out) == expected[gap:]


def test_cancel_lets_an_exec_live(client):
    run = client.start("sleep", "1000", exec_id="c")
    run.wait_started()
    client.send(run.channel, "CANCEL")
    assert run.finish()["error"] == "cancelled"
    run = client.start(exec_id="c", join=1)
    run.wait_started()
    run.signal(signal=9)
    assert run.finish()["signal"] == 9


# --- a hostile server


def still_works(agent):
    client = agent.hello()
    assert client.run("echo", "ok").out == b"ok\n"
    return client


@pytest.mark.parametrize("length", [32769, 0x7FFFFFFF, 0xFFFFFFFF])
def test_huge_length(agent, length):
    client = agent.hello()
    client.send_raw(struct.pack("<IIB", length, 1, 17))
    bye = client.frame_of(0)
    assert bye.name == "BYE" and bye.fields["error"] == "invalid_request"
    still_works(agent)


def test_truncated_frames(agent):
    for cut in (1, 5, 8, 9, 12, 30):
        client = agent.hello()
        whole = frames.pack_frame(1, frames.frame_type("OPEN"), frames.pack_fields([("op", 1), ("exec_id", "t"), ("arg", "true")]))
        client.send_raw(whole[:cut])
        client.close()
        agent.clients.clear()
    still_works(agent)


def test_one_byte_at_a_time(agent):
    client = agent.hello()
    whole = frames.pack_frame(1, frames.frame_type("OPEN"), frames.pack_fields([("op", 1), ("exec_id", "slow"), ("arg", "true")]))
    for byte in whole:
        client.send_raw(bytes([byte]))
    assert frames.Run(client, 1, "slow").finish()["exit_code"] == 0


@pytest.mark.parametrize(
    "payload",
    [b"\x12\x00\xff\xff\xff\xff", b"\x12\x00\x05", b"\x12\x00\x02\x00\x00\x00\x01"],
)
def test_malformed_fields_break_the_stream(agent, payload):
    client = agent.hello()
    client.send_raw(frames.pack_frame(1, frames.frame_type("OPEN"), payload))
    assert client.frame_of(0).name == "BYE"
    still_works(agent)


def test_messages_have_a_maximum(agent):
    client = agent.hello()
    part = frames.pack_frame(1, frames.frame_type("PART"), bytes(32768))
    with pytest.raises((BrokenPipeError, ConnectionResetError, StreamClosed)):
        for _ in range(200):
            client.send_raw(part)
        client.frame_of(0)
        raise StreamClosed()
    still_works(agent)


def test_many_beginnings_have_a_maximum(agent):
    client = agent.hello()
    client.send_raw(b"".join(frames.pack_frame(i, frames.frame_type("PART"), b"x") for i in range(1, 200)))
    assert client.frame_of(0).name == "BYE"
    still_works(agent)


def test_stdin_beyond_the_window_breaks_the_stream(agent):
    client = agent.hello()
    run = client.start("sleep", "1000", stdin=True, exec_id="w")
    run.wait_started()
    with pytest.raises((BrokenPipeError, ConnectionResetError, StreamClosed)):
        for i in range(1000):
            client.data(run.channel, 0, i * 30000, bytes(30000))
        while True:
            client.next_frame()
    still_works(agent).start(exec_id="w", join=1).wait_started()


def test_hole_in_stdin_breaks_the_stream(agent):
    client = agent.hello()
    run = client.start("cat", stdin=True)
    run.wait_started()
    client.data(run.channel, 0, 5, b"x")
    assert client.frame_of(0).name == "BYE"
    still_works(agent)


def test_absurd_credit(client):
    run = client.start("head", "-c", "200000", "/dev/zero")
    run.auto_credit = False
    client.credit(run.channel, 1, 0, 2**64 - 1)
    client.credit(run.channel, 1, 2**63, 2**64 - 1)
    client.credit(run.channel, 9, 0, 1)
    run.finish()
    assert len(run.out) == 200000


def test_peer_that_never_reads(agent):
    """It stops being heard, and costs no memory without end."""
    client = agent.hello()
    ping = frames.pack_frame(0, frames.frame_type("PING"), bytes(30000))
    os.set_blocking(client.writer, False)
    sent = 0
    try:
        while sent < 50_000_000:
            sent += os.write(client.writer, ping)
    except BlockingIOError:
        pass
    assert sent < 5_000_000
    rss = int(next(line for line in open(f"/proc/{agent.pid}/status") if line.startswith("VmRSS")).split()[1])
    assert rss < 4096
    still_works(agent)


def test_random_bytes(agent):
    rng = random.Random(1)
    for _ in range(100):
        client = agent.hello()
        try:
            client.send_raw(rng.randbytes(rng.randrange(1, 3000)))
            channel = rng.randrange(1, 9)
            client.send_raw(frames.pack_frame(channel, rng.randrange(0, 30), rng.randbytes(rng.randrange(0, 60))))
        except (BrokenPipeError, ConnectionResetError):
            pass
        client.close()
        agent.clients.clear()
    still_works(agent)


def test_too_many_execs(client):
    runs = [client.start("true", exec_id=f"n{i}") for i in range(513)]
    results = [run.finish(60) for run in runs]
    assert [r for r in results[:512] if r.get("exit_code") != 0] == []
    assert results[512]["error"] == "busy"
    for run in runs[:512]:
        run.commit()
    assert client.run("true").result["exit_code"] == 0


# --- attach and the abstract socket


def over(attach):
    return frames.Client(attach.stdout.fileno(), attach.stdin.fileno())


def close(attach):
    for pipe in (attach.stdin, attach.stdout, attach.stderr):
        pipe.close()
    attach.wait(10)


@pytest.mark.parametrize("user", [None, 12345])
def test_attach_from_outside(agents, user):
    agent = agents(abstract=True, user=user)
    attach = agent.attach()
    client = over(attach)
    assert client.hello()["fresh"] == 1
    content = os.urandom(3_000_000)
    assert client.run("cat", input=content).out == content
    attach.stdin.close()
    assert attach.wait(10) == 0
    attach.stdout.close()
    attach.stderr.close()
    second = agent.attach()
    assert over(second).hello()["fresh"] == 0
    third = agent.attach()
    assert over(third).hello()["fresh"] == 0
    bye = over(second).frame_of(0)
    assert bye.fields["error"] == "superseded"
    assert second.wait(10) == 0
    close(second)
    close(third)


def test_attach_ends_with_the_agent(agents):
    agent = agents(abstract=True)
    attach = agent.attach()
    client = over(attach)
    client.hello()
    client.configure(deadline_ms=200)
    assert client.frame_of(0).fields["error"] == "deadline"
    assert agent.wait_end() == 3
    close(attach)


def test_attach_whose_reader_has_gone(agents):
    agent = agents(abstract=True)
    attach = agent.attach()
    client = over(attach)
    client.hello()
    attach.stdout.close()
    assert attach.wait(10) == 0
    attach.stdin.close()
    attach.stderr.close()


def test_attach_without_an_agent():
    done = subprocess.run(["unshare", "--net", BINARY, "attach"], stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode != 0 and done.stdout == b""
    assert done.stderr.count(b"\n") == 1 and b"no agent" in done.stderr


DIAL = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(b'\\0podsandbox-agent')
s.settimeout(10)
try:
    s.send(bytes.fromhex(sys.argv[1]))
    data = s.recv(100)
except ConnectionError:
    data = b''
print('refused' if data == b'' else 'let in')
"""


def test_inside_may_not_speak_to_the_agent(agents):
    agent = agents(abstract=True, user=12345)
    attach = agent.attach()
    client = over(attach)
    client.hello()
    hello = frames.pack_frame(0, frames.frame_type("HELLO"), frames.pack_fields([("version", 1), ("token", frames.TOKEN)]))
    assert client.run("python3", "-c", DIAL, hello.hex()).out == b"refused\n"
    # an orphan, whose parent is PID 1 or a supervisor; its other end of the pipe tells when it is done
    script = (
        "import os, sys\nr, w = os.pipe()\n"
        "if os.fork() == 0:\n os.setsid()\n if os.fork(): os._exit(0)\n"
        f" sys.argv = ['-', '{hello.hex()}']\n exec({DIAL!r})\n sys.stdout.flush(); os._exit(0)\n"
        "os.wait(); os.close(w); os.read(r, 1)\n"
    )
    assert client.run("python3", "-c", script).out == b"refused\n"
    # `attach` itself, run from inside
    run = client.run(BINARY, "attach", input=hello)
    assert run.out == b""
    # a PID namespace within, where the dialler has no parent either
    run = client.run("unshare", "-Urpf", "python3", "-c", DIAL, hello.hex())
    assert run.out in (b"refused\n", b"")  # "" where user namespaces are not allowed
    assert client.run("true").result["exit_code"] == 0
    close(attach)


def test_inside_cannot_look_into_the_agent_s_processes(agents):
    agent = agents(abstract=True, user=12345)
    attach = agent.attach()
    client = over(attach)
    client.hello()
    script = (
        "import os,ctypes\n"
        "libc=ctypes.CDLL(None,use_errno=True)\n"
        "me=os.getpid()\n"
        "for pid in map(int,filter(str.isdigit,os.listdir('/proc'))):\n"
        " name=open(f'/proc/{pid}/stat').read().split('(')[1].split(')')[0]\n"
        " if not name.startswith('podsandbox-a'): continue\n"
        " for what in (lambda:os.listdir(f'/proc/{pid}/fd'),lambda:open(f'/proc/{pid}/mem','rb'),lambda:open(f'/proc/{pid}/environ').read(),lambda:os.readlink(f'/proc/{pid}/exe')):\n"
        "  try: what(); print('READ',pid)\n"
        "  except PermissionError: pass\n"
        " if libc.ptrace(16,pid,0,0)==0: print('TRACED',pid)\n"
        " print(pid)\n"
    )
    run = client.run("python3", "-c", script)
    lines = run.out.decode().split("\n")
    assert len(lines) >= 4, run.err  # PID 1, the zygote and our supervisor at least
    assert [line for line in lines if line.startswith(("READ", "TRACED"))] == []
    close(attach)


def test_file_worker_has_nothing_to_show(agents):
    agent = agents()
    token, blob = os.urandom(32), os.urandom(100)
    client = agent.hello(token=token)
    client.configure(blob=blob, blob_version=1)
    _, status = client.read("/proc/self/status")
    assert b"podsandbox-agen" in status
    fields, _ = client.read("/proc/self/mem")
    assert "error" in fields
    maps = client.read("/proc/self/maps")[1].decode()
    for line in maps.splitlines():
        start, end = (int(x, 16) for x in line.split()[0].split("-"))
        if "r" not in line.split()[1] or "[v" in line:
            continue
        fields, content = client.read("/proc/self/mem", ("offset", start), ("length", min(end - start, 4 << 20)))
        assert content is None or (token not in content and blob not in content)


# --- commands


def test_serve_only_as_pid_1():
    done = subprocess.run([BINARY, "serve"], capture_output=True)
    assert done.returncode == 1 and b"PID 1" in done.stderr


def test_install(tmp_path):
    for _ in range(2):
        assert subprocess.run([BINARY, "install", str(tmp_path)]).returncode == 0
    copy = tmp_path / "podsandbox-agent"
    assert copy.read_bytes() == open(BINARY, "rb").read() and copy.stat().st_mode & 0o7777 == 0o755
    assert os.listdir(tmp_path) == ["podsandbox-agent"]
    done = subprocess.run([BINARY, "install", "/nowhere"], capture_output=True)
    assert done.returncode == 1 and b"No such file" in done.stderr


def test_version_help_and_usage():
    assert subprocess.run([BINARY, "--version"], capture_output=True, check=True).stdout.startswith(b"podsandbox-agent ")
    assert b"install DIRECTORY" in subprocess.run([BINARY, "--help"], capture_output=True, check=True).stdout
    for bad in ([], ["x"], ["serve", "--listen-fd"], ["serve", "--listen-fd", "x"], ["serve", "--nope", "1"], ["serve", "--uid"],
                ["install"]):
        assert subprocess.run([BINARY, *bad], capture_output=True).returncode == 2


def test_size_and_memory(agent):
    assert os.path.getsize(BINARY) <= 256 << 10
    client = agent.hello()
    client.run("true")
    status = open(f"/proc/{agent.pid}/status").read()
    assert int(status.split("VmRSS:")[1].split()[0]) <= 1024
