"""Terminals, and WebSockets that are attached to commands: B01, B03, B06, B07, B08, B09, B16, B31, B34, B59."""

import pytest

from attaching import Attached, terminal
from server import SOAK, wait_until

pytestmark = pytest.mark.needs("programs")

SHELL = ["sh", "-i"]
PROMPT = {"PS1": "READY> "}


def shell(client, box, **body):
    return terminal(client, box, SHELL, env=PROMPT, **body)


def ended(client, box, number):
    return client.get(f"/v1/sandboxes/{box}/execs/{number}?wait=30")


def named(client, box, word):
    return [one for one in client.get(f"/v1/sandboxes/{box}/ps")["processes"] if word in " ".join(one["cmd"])]


def end(client, box, number):
    client.request("DELETE", f"/v1/sandboxes/{box}/execs/{number}?grace=0", 204)


def test_b59_the_first_size_is_right(client, box):
    number = terminal(client, box, ["stty", "size"], columns=120, rows=40)
    with Attached(client, box, number) as me:
        assert me.started["tty"] is True and (me.started["cols"], me.started["rows"]) == (120, 40)
        assert me.end()["exit_code"] == 0 and bytes(me.out) == b"40 120\r\n" and not me.err
    record = client.get(f"/v1/sandboxes/{box}/execs/{number}")
    assert record["tty"] is True and record["stdout"] == "40 120\r\n" and record["on_disconnect"] == "keep"


def test_b59_a_resize_is_a_signal(client, box):
    number = terminal(client, box, "trap 'stty size' WINCH; echo go; while :; do sleep 0.05; done")
    with Attached(client, box, number) as me:
        me.shows("go\r\n")
        me.resize(132, 43)
        assert me.told("resized") == {"type": "resized", "cols": 132, "rows": 43}
        me.shows("43 132\r\n")
        client.request("POST", f"/v1/sandboxes/{box}/execs/{number}/resize", 204, json={"cols": 99, "rows": 9})
        me.shows("9 99\r\n")
        for body in ({"cols": 0, "rows": 9}, {"cols": 65536, "rows": 9}, {"cols": 9, "rows": -1}, {"cols": 9}, {}):
            client.problem("POST", f"/v1/sandboxes/{box}/execs/{number}/resize", 400, "invalid_field", json=body)
        me.resize(0, 0)
        assert me.told("error")["code"] == "invalid_field"
        end(client, box, number)
        assert me.end()["signal"] == "KILL"
    client.problem("POST", f"/v1/sandboxes/{box}/execs/{number}/resize", 409, "conflict", json={"cols": 9, "rows": 9})
    client.problem("POST", f"/v1/sandboxes/{box}/execs/999999/resize", 404, "not_found", json={"cols": 9, "rows": 9})


def test_it_is_a_terminal(client, box):
    script = "for i in 0 1 2; do test -t $i && echo is $i; done; echo $TERM; echo error >&2; exit 3"
    with Attached(client, box, terminal(client, box, script)) as me:
        assert me.end()["exit_code"] == 3
        assert bytes(me.out) == b"is 0\r\nis 1\r\nis 2\r\nxterm-256color\r\nerror\r\n" and not me.err


def test_a_shell_to_talk_with(client, box):
    number = shell(client, box)
    with Attached(client, box, number) as me:
        at = me.shows("READY> ")
        me.type("echo $((6*7))\n")
        at = me.shows("\r\n42\r\n", "READY> ", since=at)
        me.type("exit 5\n")
        assert me.end()["exit_code"] == 5


def test_b59_the_last_bytes_are_there(client, box):
    for _ in range(200 if SOAK else 20):
        with Attached(client, box, terminal(client, box, ["echo", "end"])) as me:
            assert me.end()["exit_code"] == 0 and bytes(me.out) == b"end\r\n"


def test_b01_ten_megabytes(client, box):
    with Attached(client, box, terminal(client, box, "stty -opost; head -c 10000000 /dev/zero | tr '\\0' x; echo; echo end")) as me:
        assert me.end()["stdout_bytes"] == 10000005
        assert len(me.out) == 10000005 and not me.gaps and me.out.endswith(b"x\nend\n") and me.out.count(b"x") == 10000000


def test_b59_a_million_numbers(client, box):
    with Attached(client, box, terminal(client, box, ["seq", "1", "1000000"])) as me:
        assert me.end()["exit_code"] == 0
        assert bytes(me.out) == b"".join(b"%d\r\n" % number for number in range(1, 1000001))


def test_b59_ctrl_d_ends_and_ctrl_c_kills_cat(client, box):
    with Attached(client, box, terminal(client, box, ["cat"])) as me:
        me.type("line\n")
        me.shows("line\r\nline\r\n")
        me.type("\4")
        assert me.end()["exit_code"] == 0
    with Attached(client, box, terminal(client, box, ["cat"])) as me:
        me.say("close_stdin")
        assert me.end()["exit_code"] == 0
    with Attached(client, box, terminal(client, box, ["cat"])) as me:
        me.type("x\n")
        me.shows("x\r\nx\r\n")
        me.type("\3")
        assert me.end()["signal"] == "INT"


def test_job_control(client, box):
    with Attached(client, box, shell(client, box)) as me:
        at = me.shows("READY> ")
        me.type("sleep 1000\n")
        wait_until(lambda: named(client, box, "sleep 1000"))
        me.type("\x1a")
        at = me.shows("topped", "READY> ", since=at)
        assert named(client, box, "sleep 1000")[0]["state"] == "T"
        me.type("jobs\n")
        at = me.shows("topped", "READY> ", since=at + 4)
        me.type("bg\n")
        wait_until(lambda: named(client, box, "sleep 1000")[0]["state"] == "S")
        me.type("fg\n")
        me.shows("fg\r\n", since=at)
        wait_until(lambda: named(client, box, "sleep 1000"))
        me.type("\3")
        at = me.shows("READY> ", since=len(me.out))
        me.type("exit 0\n")
        assert me.end()["exit_code"] == 0
    assert not named(client, box, "sleep 1000")


def test_top_redraws(client, box):
    if client.exec(box, "command -v top")["exit_code"] != 0:
        pytest.skip("the image has no top")
    with Attached(client, box, terminal(client, box, ["top", "-d", "0.2"])) as me:
        me.shows("PID")
        while me.out.count(b"\x1b[H") < 4:
            assert me.step() is not None
        me.type("q")
        assert me.end()["exit_code"] == 0


def test_vi_edits_a_file(client, box):
    editor = next((one for one in ("vim", "vi") if client.exec(box, f"command -v {one}")["exit_code"] == 0), None)
    if not editor:
        pytest.skip("the image has no vi")
    with Attached(client, box, terminal(client, box, [editor, "edited"])) as me:
        me.shows("edited")
        me.type("ihello from a terminal\x1b")
        me.shows("terminal")
        me.type(":wq\r")
        assert me.end()["exit_code"] == 0
    assert client.read(box, "edited") == b"hello from a terminal\n"
    client.request("DELETE", client.file_url(box, "edited"), 204)


def test_several_see_the_same_and_one_writes(client, box):
    number = shell(client, box)
    with Attached(client, box, number) as me, Attached(client, box, number) as other, Attached(client, box, number, "write=false") as third:
        assert me.started["writer"] is True and other.started["writer"] is False and third.started["writer"] is False
        me.shows("READY> ")
        other.type("echo no\n")
        assert other.told("error")["code"] == "not_writer"
        other.resize(9, 9)
        assert other.told("error")["code"] == "not_writer"
        other.say("signal", signal="INT")
        assert other.told("error")["code"] == "not_writer"
        other.say("takeover")
        assert other.told("writer")["writer"] is True and me.told("writer")["writer"] is False
        other.type("echo one; exit\n")
        for one in (me, other, third):
            assert one.end()["exit_code"] == 0
        assert bytes(me.out) == bytes(other.out) == bytes(third.out) and b"\r\none\r\n" in me.out and b"no" not in me.out
        me.leave()


def test_taking_over_and_letting_go(client, box):
    number = shell(client, box)
    with Attached(client, box, number) as me:
        with Attached(client, box, number, "takeover=true") as other:
            assert other.started["writer"] is True and me.told("writer")["writer"] is False
        wait_until(lambda: writer_now(client, box, number))
        me.say("takeover")
        assert me.told("writer")["writer"] is True
        me.say("release")
        assert me.told("writer")["writer"] is False
        with Attached(client, box, number) as other:
            assert other.started["writer"] is True
            other.type("exit\n")
            assert other.end()["exit_code"] == 0
        assert me.end()["exit_code"] == 0


def writer_now(client, box, number):
    """There is none: whoever comes becomes it, and leaves again."""
    with Attached(client, box, number) as other:
        return other.started["writer"]


def test_who_comes_back_gets_every_byte_once(client, box):
    number = terminal(client, box, "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo line $i; [ $((i % 20)) != 0 ] || sleep 0.05; done; exit 4")
    seen, comings = b"", 0
    while True:
        me = Attached(client, box, number, f"offset={len(seen)}")
        assert me.started["offset"] == len(seen)
        comings += 1
        while len(me.out) < 700 and me.step() is not None:
            pass
        seen += me.out
        (me.vanish if comings % 2 else me.leave)()
        if me.messages[-1]["type"] == "exit":
            break
    assert seen == b"".join(b"line %d\r\n" % number for number in range(1, 401)) and comings > 3
    assert me.messages[-1]["exit_code"] == 4
    with Attached(client, box, number, "offset=-10") as me:
        assert me.started["offset"] == len(seen) - 10 and me.end()["exit_code"] == 4 and bytes(me.out) == b"line 400\r\n"
    with Attached(client, box, number, f"offset={len(seen)}") as me:
        assert me.end()["exit_code"] == 4 and not me.out


def test_a_secret_in_two_writes_is_masked(client, box):
    client.request("POST", f"/v1/sandboxes/{box}/secrets", 204, json={"values": ["term1nal-s3cret"]})
    with Attached(client, box, terminal(client, box, "printf 'a term1nal'; sleep 0.02; printf -- '-s3cret z\\n'; printf 'term1'; sleep 0.5; echo x")) as me:
        assert me.end()["exit_code"] == 0
        assert bytes(me.out) == b"a *************** z\r\nterm1x\r\n"
    with Attached(client, box, terminal(client, box, ["cat"])) as me:
        me.type("term1nal-")
        me.type("s3cret\n")
        me.shows("\r\n***************\r\n")
        assert b"s3cret" not in me.out
        me.type("\4")
        assert me.end()["exit_code"] == 0


def test_b03_the_true_code(client, box):
    for _ in range(50 if SOAK else 10):
        with Attached(client, box, terminal(client, box, ["false"])) as me:
            assert me.end()["exit_code"] == 1
    with Attached(client, box, terminal(client, box, ["no-such-program"])) as me:
        assert me.end()["exit_code"] == 127 and me.messages[-1]["error"]["code"] == "command_not_found"
    with Attached(client, box, terminal(client, box, "kill -9 $$")) as me:
        assert me.end()["signal"] == "KILL" and me.messages[-1]["exit_code"] is None


def test_b07_delete_leaves_nothing(client, box):
    number = terminal(client, box, "trap '' TERM HUP; (trap '' TERM HUP; setsid sh -c 'trap \"\" TERM HUP; sleep 7777; :' &) ; sleep 7776; :")
    with Attached(client, box, number) as me:
        wait_until(lambda: named(client, box, "sleep 7777") and named(client, box, "sleep 7776"))
        client.request("DELETE", f"/v1/sandboxes/{box}/execs/{number}?grace=0.2", 204)
        assert me.end()["signal"] == "KILL"
    assert not named(client, box, "sleep 777")


def test_b07_a_timeout(client, box):
    with Attached(client, box, terminal(client, box, "trap '' TERM HUP; printf partial; sleep 7775; :", timeout=0.5)) as me:
        assert me.end()["timed_out"] is True and bytes(me.out) == b"partial"
    assert not named(client, box, "sleep 7775")


def test_b08_a_child_in_the_background(client, box):
    number = terminal(client, box, "trap '' HUP; sleep 7774 & echo begun")
    with Attached(client, box, number) as me:
        assert me.end()["exit_code"] == 0 and bytes(me.out) == b"begun\r\n"
    end(client, box, number)
    assert not named(client, box, "sleep 7774")


def test_b09_who_leaves_ends_what_he_wants_to_end(client, box):
    """on_disconnect and its grace are as for any command; a terminal stays by default."""
    kept = shell(client, box)
    with Attached(client, box, kept) as me:
        me.shows("READY> ")
    for leave in ("leave", "vanish"):
        number = terminal(client, box, SHELL, on_disconnect="kill", disconnect_grace=0.1)
        me = Attached(client, box, number)
        me.type("sleep 7773\n")
        wait_until(lambda: named(client, box, "sleep 7773"))
        getattr(me, leave)()
        wait_until(lambda: not named(client, box, "sleep 7773"))
        record = wait_until(lambda: ended(client, box, number)["ended"] and ended(client, box, number))
        assert record["signal"] == "HUP" and record["error"]["code"] == "cancelled"
    with Attached(client, box, kept) as me:
        me.type("exit 6\n")
        assert me.end()["exit_code"] == 6


def test_a_command_with_pipes(client, box):
    """B06: input and its end, on the same connection; both streams apart."""
    number = client.post(f"/v1/sandboxes/{box}/execs", {"cmd": ["sh", "-c", "echo err >&2; cat; sleep 0.1; echo late"], "stdin_encoding": "raw"}, 202)["id"]
    with Attached(client, box, number) as me:
        assert me.started["tty"] is False and me.started["writer"] is True and me.started["stderr_offset"] == 0
        me.type(b"abc" * 100000)
        me.resize(80, 24)
        assert me.told("error")["code"] == "conflict"
        me.say("close_stdin")
        assert me.end()["exit_code"] == 0
        assert bytes(me.out) == b"abc" * 100000 + b"late\n" and bytes(me.err) == b"err\n"
    with Attached(client, box, number, "offset=-5&stderr_offset=-2") as me:
        assert me.end() and bytes(me.out) == b"late\n" and bytes(me.err) == b"r\n"


def test_a_command_without_input(client, box):
    number = client.post(f"/v1/sandboxes/{box}/execs", {"cmd": ["sh", "-c", "echo begun; exec sleep 7772"], "detach": True}, 202)["id"]
    with Attached(client, box, number) as me:
        me.shows("begun\n")
        me.type("x")
        assert me.told("error")["code"] == "conflict"
        me.say("ping")
        assert me.told("pong") == {"type": "pong"}
        me.say("signal", signal="SIGTERM")
        assert me.end()["signal"] == "TERM"


def test_signals_reach_the_command_or_its_tree(client, box):
    number = terminal(client, box, "trap 'echo got; exit 9' USR1; sleep 7771 & echo ready; while :; do sleep 0.05; done")
    with Attached(client, box, number) as me:
        me.shows("ready\r\n")
        me.say("signal", signal="NONSENSE")
        assert me.told("error")["code"] == "invalid_field"
        me.say("signal", signal="USR1")
        assert me.end()["exit_code"] == 9
    end(client, box, number)
    number = terminal(client, box, "(trap '' HUP; sleep 7770 & wait) & echo ready; wait")
    with Attached(client, box, number) as me:
        me.shows("ready\r\n")
        wait_until(lambda: named(client, box, "sleep 7770"))
        me.say("signal", signal="KILL", tree=True)
        assert me.end()["signal"] == "KILL"
    wait_until(lambda: not named(client, box, "sleep 7770"))


def test_what_asks_for_a_terminal_wrongly(client, box):
    for body in ({"cols": 0}, {"rows": 65536}, {"cols": -1}, {"stdin": "x"}, {"stdin_encoding": "raw"}, {"cols": "80"}):
        client.problem("POST", f"/v1/sandboxes/{box}/execs", 400, "invalid_field", json={"cmd": ["true"], "tty": True, **body})
    client.problem("POST", f"/v1/sandboxes/{box}/execs", 400, "invalid_field", json={"cmd": ["true"], "cols": 80})
    number = shell(client, box)
    client.problem("PUT", f"/v1/sandboxes/{box}/execs/{number}/stdin", 409, "conflict", data=b"x")
    end(client, box, number)


def test_a_terminal_as_a_stream(client, box):
    from events import joined, stream
    events = stream(client, box, ["stty", "size"], tty=True, cols=70, rows=7).all()
    assert joined(events) == b"7 70\r\n" and events[-1]["result"]["exit_code"] == 0


@pytest.mark.needs("adoption")
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_terminal_outlives_the_server(server, client, how):
    """Every byte once, what is typed to the new server arrives, and the size is what it was."""
    box = client.create(ttl=600)["id"]
    number = shell(client, box)
    with Attached(client, box, number) as me:
        at = me.shows("READY> ")
        me.type("echo before\n")
        at = me.shows("\r\nbefore\r\n", "READY> ", since=at)
        me.resize(111, 33)
        me.told("resized")
        me.type("i=0; while [ $i -lt 30 ]; do i=$((i+1)); echo n$i; sleep 0.05; done\n")
        at = me.shows("\r\nn3\r\n", since=at)
        getattr(server, how)()
        code = me.closed()
        assert code == 1001 if how == "stop" else code in (None, 1006)
    server.start()
    client.wait_state(box, "running")
    with Attached(client, box, number, f"offset={len(me.out)}") as again:
        assert again.started["offset"] == len(me.out) and again.started["writer"] is True
        again.shows("READY> ")
        text = bytes(me.out + again.out)
        assert b"".join(b"n%d\r\n" % index for index in range(1, 31)) in text and text.count(b"n30\r\n") == 1
        again.type("stty size; exit 8\n")
        assert again.end()["exit_code"] == 8 and b"33 111\r\n" in again.out
    client.delete(box)


@pytest.mark.needs("adoption")
def test_a_terminal_that_only_the_agent_knows(server, client):
    """The store is lost: what it is, its size, and how much was typed the agent says."""
    box = client.create(ttl=600)["id"]
    number = shell(client, box)
    with Attached(client, box, number) as me:
        at = me.shows("READY> ")
        me.type("echo before\n")
        me.shows("\r\nbefore\r\n", "READY> ", since=at)
        me.resize(111, 33)
        me.told("resized")
        server.kill()
        me.closed()
    server.forget()
    server.start()
    client.wait_state(box, "running")
    wait_until(lambda: client.get(f"/v1/sandboxes/{box}/execs")["items"])
    wait_until(lambda: client.get(f"/v1/sandboxes/{box}/execs/{number}").get("cols") == 111)
    with Attached(client, box, number) as again:
        assert again.started["tty"] is True and (again.started["cols"], again.started["rows"]) == (111, 33)
        again.type("stty size; exit 8\n")
        assert again.end()["exit_code"] == 8 and b"\r\n33 111\r\n" in again.out
    client.delete(box)
