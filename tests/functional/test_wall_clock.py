"""B18d: somebody sets the clock of the server's machine by a day, forwards or backwards, while it runs or while it does not."""

import os
import struct
import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest

from server import SLOW, wait_until

DAY = 86400
HERE = Path(__file__).parent
SWEEPS = ("--reap-every", "0.3")
BRIEF = 20 if SLOW else 5  # seconds: outlives a restart of the server


@pytest.fixture(scope="module")
def preload(tmp_path_factory):
    library = tmp_path_factory.mktemp("wall-clock") / "wall_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "wall_clock.c"], check=True)
    return library


@pytest.fixture
def clocked(fresh, preload, tmp_path):
    """clocked(options…): a server whose wall clock its set_clock(seconds) sets, relative to the true one."""
    def make(*options):
        offset = tmp_path / "offset"
        offset.write_bytes(bytes(8))
        sanitizer = os.environ.get("ASAN_OPTIONS", "")
        server = fresh(*options, env={"LD_PRELOAD": str(preload), "WALL_CLOCK_OFFSET": str(offset),
                                      "ASAN_OPTIONS": f"{sanitizer}:verify_asan_link_order=0"})
        server.offset = offset
        return server
    return make


def set_clock(server, seconds):
    with open(server.offset, "r+b") as file:
        file.write(struct.pack("=q", seconds))


def shown(text):
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def clock_of(server):
    """What the server takes for the time: that of a new record."""
    client = server.client()
    record = client.create("what-time")
    client.delete("what-time")
    return shown(record["created"])


def two_sweeps(server):
    """Those by themselves go on, too; these have certainly seen the clock as it is now."""
    for _ in range(2):
        server.client().post("/v1/admin/reap", {"dry_run": False})


@pytest.mark.parametrize("down", [False, True], ids=["running", "down"])
@pytest.mark.parametrize("day", [DAY, -DAY], ids=["forwards", "backwards"])
def test_b18_the_clock_is_set(clocked, day, down):
    server = clocked(*SWEEPS).start()
    client = server.client()
    for name, ttl in (("stays", 3600), ("ends", BRIEF), ("renewed", BRIEF)):
        client.create(name, ttl=ttl)
    if down:
        server.kill()
    set_clock(server, day)
    if down:
        server.start()
    assert abs(clock_of(server) - datetime.now(timezone.utc).timestamp() - day) < 3600  # it is another day for the server
    client.request("PATCH", "/v1/sandboxes/renewed", 200, json={"ttl": 1800})
    two_sweeps(server)
    for name in ("stays", "renewed"):  # no mass reap
        assert client.sandbox(name)["state"] == "running" and client.exec(name, ["true"])["exit_code"] == 0
    assert client.wait_state("ends", "gone")["reason"] == "ttl"  # and nothing lives for ever
    server.api.wait_gone("pods", "sandbox-ends")
    client.create("after", ttl=2)
    assert client.wait_state("after", "gone")["reason"] == "ttl"
    two_sweeps(server)
    assert {item["id"] for item in client.list()} == {"stays", "renewed"}


@pytest.mark.parametrize("day", [DAY, -DAY], ids=["forwards", "backwards"])
def test_b18_the_clock_is_set_and_the_store_is_lost(clocked, day):
    """Deadlines are what is left on the agent's own clock, not a time of day."""
    server = clocked(*SWEEPS).start()
    client = server.client()
    client.create("adopted", ttl=3600)
    client.create("ending", ttl=BRIEF)
    server.kill()
    server.forget()
    set_clock(server, day)
    server.start()
    record = client.wait_state("adopted", "running")
    two_sweeps(server)
    assert abs(shown(record["expires"]) - clock_of(server) - 3600) < 600
    assert client.exec("adopted", ["true"])["exit_code"] == 0
    wait_until(lambda: client.request("GET", "/v1/sandboxes/ending").status_code in (404, 410), what="the end of the other")
    server.api.wait_gone("pods", "sandbox-ending")
    assert client.sandbox("adopted")["state"] == "running"


def test_b18_backwards_while_a_command_runs(clocked):
    """A timeout is no time of day. A tombstone is kept by the calendar, and goes when that has caught up."""
    server = clocked("--tombstones", "1", *SWEEPS).start()
    client = server.client()
    client.create("busy")
    started = client.start("busy", ["sleep", "600"], timeout=2)
    set_clock(server, DAY)
    client.create("buried")
    client.delete("buried")
    set_clock(server, 0)
    result = client.exec_wait("busy", started["id"])
    assert result["timed_out"] and 0 <= result["duration"] < 600
    two_sweeps(server)
    client.problem("GET", "/v1/sandboxes/buried", 410)
    set_clock(server, 2 * DAY)
    wait_until(lambda: client.request("GET", "/v1/sandboxes/buried").status_code == 404, what="the tombstone being forgotten")
    assert client.sandbox("busy")["age"] >= 0 and client.exec("busy", ["true"])["exit_code"] == 0
