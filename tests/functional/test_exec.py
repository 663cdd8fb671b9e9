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


def test_a_page_of_long_commands_is_bounded(client, box):
    """30 commands of 1.2 MiB each come in pages, and none is left out."""
    words = ["sh", "-c", "exit 7"] + ["x" * 120000] * 10
    first = client.exec(box, words)["id"]
    for _ in range(29):
        assert client.exec(box, words)["exit_code"] == 7
    seen, query = [], ""
    while query is not None:
        page = client.request("GET", f"/v1/sandboxes/{box}/execs?limit=500{query}")
        assert len(page.content) < 20 << 20
        seen += [item["id"] for item in page.json()["items"]]
        query = page.json()["next"] and f"&before={page.json()['next']}"
    assert sorted(seen)[-30:] == list(range(first, first + 30))


def test_home_and_user(client, box):
    assert client.exec(box, "echo $HOME; id -u; id -g")["stdout"] == "/home/sandbox\n1000\n1000\n"


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
