"""Commands, beyond what tests/functional/conformance says of every driver."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from server import SOAK, WRAPPER

MIB = 1 << 20


@pytest.fixture(scope="module")
def box(cloud):
    """One sandbox for all tests that leave it as it was."""
    client = cloud.client()
    client.create("box", ttl=3600)
    yield "box"


def test_home_and_user(client, box):
    assert client.exec(box, "echo $HOME; id -u; id -g")["stdout"] == "/home/sandbox\n1000\n1000\n"


def test_what_does_not_exist_yet_is_said(client, box):
    client.exec_problem(box, ["true"], 422, "not_supported", tty=True)


@pytest.mark.skipif(bool(WRAPPER), reason="memory under valgrind says nothing")
def test_b34_memory_stays_bounded(server, client, box):
    if "SAN" in "".join(name for name in os.environ if name.endswith("SAN_OPTIONS")):
        pytest.skip("nor does it under a sanitizer")
    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda _: client.exec(box, "head -c 8000000 /dev/zero", max_output=1000), range(50 if SOAK else 20)))
    assert {result["stdout_bytes"] for result in results} == {8000000}
    assert server.usage()["rss"] < 300 * 1024


def test_b05_large_input_goes_in_small_frames(client, api, box):
    record = client.start(box, ["wc", "-c"])
    client.feed(box, record["id"], os.urandom(MIB) * 8)
    client.exec_wait(box, record["id"])
    assert api.stream(box).socket.largest <= MIB
