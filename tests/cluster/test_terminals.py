"""Terminals in both runtimes: gVisor has a kernel of its own."""

import pytest

from attaching import Attached, terminal


@pytest.fixture(scope="module", params=[None, "gvisor"], ids=["runc", "gvisor"])
def box(request, cloud):
    client = cloud.client()
    record = client.create(ttl=600, image="localhost/python:1", runtime_class=request.param)
    yield record["id"]
    client.delete(record["id"], expect=(202, 204))


def test_a_shell_and_its_size(client, box):
    number = terminal(client, box, ["sh", "-i"], columns=120, rows=40, env={"PS1": "READY> "})
    with Attached(client, box, number) as me:
        at = me.shows("READY> ")
        me.type("stty size\n")
        at = me.shows("\r\n40 120\r\n", "READY> ", since=at)
        me.resize(99, 9)
        me.told("resized")
        me.type("stty size; echo $TERM\n")
        at = me.shows("\r\n9 99\r\nxterm-256color\r\n", "READY> ", since=at)
        me.type("sleep 1000\n")
        me.shows("sleep 1000\r\n", since=at)
        me.type("\3")
        at = me.shows("READY> ", since=len(me.out))
        me.type("exit 7\n")
        assert me.end()["exit_code"] == 7


def test_every_byte_and_the_last(client, box):
    for _ in range(10):
        with Attached(client, box, terminal(client, box, ["echo", "end"])) as me:
            assert me.end()["exit_code"] == 0 and bytes(me.out) == b"end\r\n"
    with Attached(client, box, terminal(client, box, ["seq", "1", "200000"])) as me:
        assert me.end()["exit_code"] == 0
        assert bytes(me.out) == b"".join(b"%d\r\n" % number for number in range(1, 200001))
