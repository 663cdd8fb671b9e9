"""Terminals while the stream to the agent goes wrong: B01, B02, B31, B38."""

import os

import pytest

from attaching import Attached, terminal
from test_stream_faults import CUTS, LINES

OPTIONS = ("--reap-every", "1")


@pytest.fixture
def box(client):
    client.create("box")
    yield "box"
    client.delete("box", expect=(202, 204))


@pytest.mark.parametrize("how", CUTS)
def test_b02_a_terminal_over_a_stream_that_breaks(client, api, box, how):
    """What is typed and resized around a cut arrives, once; nobody who is attached notices."""
    number = terminal(client, box, ["sh", "-i"], env={"PS1": "READY> "})
    with Attached(client, box, number) as me:
        at = me.shows("READY> ")
        stream = api.stream(box)
        before = len(api.seen("exec"))
        me.type("echo on")
        CUTS[how](stream)
        me.type("ce; stty size\n")
        me.resize(77, 7)
        api.wait_seen(before + 1, verb="exec")
        at = me.shows("\r\nonce\r\n", "READY> ", since=at)
        me.type("stty size; exit 6\n")
        assert me.end()["exit_code"] == 6
        assert me.out.count(b"\r\nonce\r\n") == 1 and b"\r\n7 77\r\n" in me.out[at:]


@pytest.mark.parametrize("how", ["close 1000", "RST", "half a frame"])
def test_b01_output_of_a_terminal_over_streams_that_break(client, api, box, how):
    number = terminal(client, box, "read go; " + LINES % 60000)
    with Attached(client, box, number) as me, Attached(client, box, number, "write=false") as other:
        stream = api.stream(box)
        before = len(api.seen("exec"))
        stream.cut_after(100000, CUTS[how])
        me.type("\n")
        for one in (me, other):
            assert one.end()["exit_code"] == 0
            assert bytes(one.out) == b"\r\n" + b"".join(b"line %d\r\n" % index for index in range(1, 60001)) + b"end\r\n"
        assert len(api.seen("exec")) > before


def test_b38_the_sandbox_dies(client, api, box):
    """Never an exit: how the command ended is not known."""
    number = terminal(client, box, ["cat"])
    with Attached(client, box, number) as me:
        me.type("x\n")
        me.shows("x\r\nx\r\n")
        os.kill(api.node.container(box).inner, 9)
        assert me.closed() == 1011 and me.messages[-1]["code"] == "sandbox_gone"
        assert not [message for message in me.messages if message["type"] == "exit"]


def test_b02_unreachable_for_30_s(client, api, box):
    """He is told so, and comes back when it can be reached again: nothing is lost."""
    number = terminal(client, box, ["cat"])
    with Attached(client, box, number) as me:
        me.type("one\n")
        me.shows("one\r\none\r\n")
        api.exec_fault(box, refuse=(503, b"no", "text/plain"), times=None)
        CUTS["RST"](api.stream(box))
        while me.step(60) is not None:
            pass
        assert me.code == 1011 and me.messages[-1]["code"] == "stream_lost"
    api.clear()
    assert client.exec(box, ["true"])["exit_code"] == 0
    with Attached(client, box, number, f"offset={len(me.out)}") as again:
        again.type("two\n\4")
        assert again.end()["exit_code"] == 0 and bytes(again.out) == b"two\r\ntwo\r\n"
