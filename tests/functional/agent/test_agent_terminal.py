"""Commands with a terminal."""

import pytest

from test_agent_exec import outcome


def test_the_first_size_is_right(client):
    run = client.run("stty", "size", columns=120, rows=40)
    assert bytes(run.out) == b"40 120\r\n" and not run.err and outcome(run) == {"exit_code": 0}
    assert (run.started["columns"], run.started["rows"]) == (120, 40)


def test_it_is_a_terminal_of_its_own(client):
    script = ("import os\nfor fd in 0, 1, 2: assert os.isatty(fd)\n"
              "assert os.ttyname(0) == os.ttyname(2) and os.getsid(0) == os.getpid() == os.tcgetpgrp(0)\n"
              "print(os.listdir('/proc/self/fd'), os.environ['TERM'], file=open('/dev/tty', 'w'))")
    assert bytes(client.run("python3", "-c", script, columns=80, rows=24).out) == b"['0', '1', '2', '3'] xterm-256color\r\n"


def test_the_last_bytes_are_there(client):
    for _ in range(200):
        assert bytes(client.run("echo", "end", columns=80, rows=24).out) == b"end\r\n"


def test_a_child_in_the_background_does_not_hold_the_end_up(client):
    run = client.run("sh", "-c", "trap '' HUP; sleep 60 & echo begun", columns=80, rows=24)
    assert bytes(run.out) == b"begun\r\n" and outcome(run) == {"exit_code": 0}
    client.request("KILL", ("exec_id", run.exec_id), ("grace_ms", 0))


def test_all_may_be_closed_and_opened_again(client):
    run = client.run("sh", "-c", "exec 0<&- 1>&- 2>&-; sleep 0.2; echo late >/dev/tty", columns=80, rows=24)
    assert bytes(run.out) == b"late\r\n"


def test_a_resize_is_a_signal(client):
    run = client.start("python3", "-c", "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n"
                       "os.write(1, b'ready\\n')\nsignal.sigwait([signal.SIGWINCH])\nprint(os.get_terminal_size())\nexit(5)", columns=80, rows=24)
    while bytes(run.out) != b"ready\r\n":
        run.step()
    client.send(run.channel, "RESIZE", [("columns", 0), ("rows", 9)])
    client.send(run.channel, "RESIZE", [("columns", 132), ("rows", 9)])
    run.finish()
    assert b"columns=132, lines=9" in run.out and outcome(run) == {"exit_code": 5}


@pytest.mark.parametrize("columns, rows", [(0, 24), (80, 0), (65536, 24)])
def test_no_size_no_terminal(client, columns, rows):
    assert outcome(client.run("test", "-t", "1", columns=columns, rows=rows)) == {"exit_code": 1}


def test_a_program_that_is_missing(client):
    assert outcome(client.run("no-such-program", columns=80, rows=24)) == {"exit_code": 127, "error": "command_not_found"}


def test_ten_megabytes(client):
    run = client.run("sh", "-c", "stty -opost; head -c 10000000 /dev/zero | tr '\\0' x", columns=80, rows=24)
    assert len(run.out) == 10000000 and set(run.out) == {ord("x")}


def test_nothing_of_it_is_left(client):
    """Shells that talk with somebody ignore TERM; HUP ends them before the grace is over."""
    run = client.start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.02; done", columns=80, rows=24)
    while b"ready" not in run.out:
        run.step()
    client.request("KILL", ("exec_id", run.exec_id), ("grace_ms", 60000))
    run.finish()
    assert run.result["signal"] == 1
