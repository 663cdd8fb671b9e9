"""Clients that leave (B09): reset, or unplugged so that the server hears nothing more. Their commands end within the grace
and 5 s, and nothing of them stays in the server."""

import json

import pytest

from server import POOL_THREADS, open_request, reset, unplug, wait_until

GRACE = 1
SLEEP = ["sh", "-c", "trap '' HUP; exec sleep 4321"]


def begin(server, box, cmd):
    body = json.dumps({"cmd": cmd, "disconnect_grace": GRACE}).encode()
    return open_request(server.port, "POST", f"/v1/sandboxes/{box}/execs", body)


def sleepers(client, box):
    return int(client.exec(box, "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null | grep -c '^sleep 432[1]'")
               ["stdout"])


@pytest.mark.parametrize("leave", [reset, unplug])
def test_a_client_that_leaves(server, client, box, leave):
    sock = begin(server, box, SLEEP)
    wait_until(lambda: sleepers(client, box) == 1, 20, "the command running")
    leave(sock)
    wait_until(lambda: sleepers(client, box) == 0, GRACE + 5 if leave is reset else 60, "the command being dead")
    last = client.get(f"/v1/sandboxes/{box}/execs?limit=200")["items"]
    left = next(item for item in last if item["cmd"] == SLEEP)
    assert left["state"] == "exited" and left["exit_code"] is None
    sock.close()


def test_a_loud_command_whose_client_left(server, client, box):
    sock = begin(server, box, ["sh", "-c", "while :; do echo t; sleep 0.1; done; exec sleep 4321"])
    def running():  # by the list: asking for the one execution would be a client that comes back
        return [item for item in client.get(f"/v1/sandboxes/{box}/execs")["items"] if item["state"] == "running"]
    wait_until(running, 20, "the command running")
    reset(sock)
    wait_until(lambda: not running(), GRACE + 5, "the command being dead")


def test_a_client_that_comes_back_in_time(server, client, box):
    body = json.dumps({"cmd": ["sh", "-c", "sleep 3; echo done"], "disconnect_grace": 30}).encode()
    sock = open_request(server.port, "POST", f"/v1/sandboxes/{box}/execs", body)
    number = wait_until(lambda: [item for item in client.get(f"/v1/sandboxes/{box}/execs")["items"] if item["state"] == "running"],
                        20, "the command running")[0]["id"]
    reset(sock)
    assert client.exec_wait(box, number)["stdout"] == "done\n"


def test_many_that_leave_cost_nothing(server, client, box):
    rounds, at_once = 500, 50
    client.exec(box, ["true"])
    for number in range(rounds // at_once):
        socks = [begin(server, box, SLEEP) for _ in range(at_once)]
        wait_until(lambda: sleepers(client, box) == at_once, 30, "all running")
        for sock in socks:
            reset(sock)
        wait_until(lambda: sleepers(client, box) == 0, 30, "all being dead")
        if number == 0:
            before = server.usage()
    wait_until(lambda: server.usage()["fds"] <= before["fds"] + 2, 20, f"the descriptors being {before['fds']}")
    after = server.usage()
    assert after["threads"] <= before["threads"] + POOL_THREADS and after["fds"] <= before["fds"] + 2
    assert int(client.exec(box, "ls -d /proc/[0-9]* | wc -l")["stdout"]) < 12
