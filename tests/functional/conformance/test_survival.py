"""The server dies and comes back, with its store or without: commands go on, sandboxes are found. B49, B17."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
import requests

from server import wait_until

pytestmark = pytest.mark.needs("programs", "adoption")
UNTIL_GO = "while [ ! -e go ]; do sleep 0.02; done"


@pytest.fixture
def kept(client):
    client.create("kept", ttl=3000, labels={"team": "a"}, secrets=["hunter2-hunter2"], env={"A": "1", "TOKEN": "hunter2-hunter2"})
    yield "kept"
    client.delete("kept", expect=(202, 204))


def begin(client, box, cmd, **body):
    """A command that runs and whose client does not wait: its number."""
    number = client.start(box, f"echo begun; {cmd}", **body)["id"]
    client.feed(box, number, b"")
    wait_until(lambda: client.get(f"/v1/sandboxes/{box}/execs/{number}")["stdout_bytes"] >= 6, what="the command running")
    return number


def seconds(text):
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_running_command_outlives_the_server(server, client, kept, how):
    number = begin(client, kept, f"seq 1 50000; {UNTIL_GO}; seq 50001 100000; exit 5")
    getattr(server, how)()
    server.start()
    client.put(kept, "go", b"")
    result = client.exec_wait(kept, number)
    assert result["exit_code"] == 5 and result["error"] is None
    assert client.output(kept, number).content == b"begun\n" + b"".join(b"%d\n" % i for i in range(1, 100001))


def test_a_command_that_ends_while_the_server_is_away(server, client, kept):
    """Its client was waiting when the server was killed; the result is there afterwards, complete."""
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(client.exec, kept, "echo begun; sleep 2; seq 1 20000; echo $A; exit 9", on_disconnect="keep")
        wait_until(lambda: [item for item in client.get(f"/v1/sandboxes/{kept}/execs")["items"] if item["stdout_bytes"]])
        server.kill()
        with pytest.raises(requests.RequestException):
            lost.result()
    server.start()
    number = client.get(f"/v1/sandboxes/{kept}/execs")["items"][0]["id"]
    assert client.exec_wait(kept, number)["exit_code"] == 9
    assert client.output(kept, number).content == b"begun\n" + b"".join(b"%d\n" % i for i in range(1, 20001)) + b"1\n"


def test_an_empty_store_is_filled_again(server, client, kept):
    before = client.sandbox(kept)
    number = begin(client, kept, f"echo $TOKEN; {UNTIL_GO}; echo late $TOKEN; exit 4")
    server.kill()
    server.forget()
    server.start()
    record = client.wait_state(kept, "running")
    for name in ("uid", "owner", "created", "labels", "image", "ttl"):
        assert record[name] == before[name], name
    assert abs(seconds(record["expires"]) - seconds(before["expires"])) <= 1
    assert client.exec(kept, ["echo", "hunter2-hunter2"])["stdout"] == "***\n"  # still masks its secrets
    assert client.exec(kept, ["printenv", "A"])["stdout"] == "1\n"
    client.put(kept, "go", b"")
    result = client.exec_wait(kept, number)
    assert result["exit_code"] == 4 and "hunter2" not in result["stdout"] and result["stdout"].endswith("late ***\n")
    assert client.exec(kept, ["true"])["id"] > number  # new commands get numbers of their own
    assert len([item for item in client.list() if item["id"] == kept]) == 1


def test_b17_same_key_after_a_restart(server, client):
    first = client.create(headers={"Idempotency-Key": "key-2"}, ttl=300)
    server.restart()
    assert client.create(headers={"Idempotency-Key": "key-2"}, ttl=300)["uid"] == first["uid"]
    client.create_problem(409, "idempotency_conflict", headers={"Idempotency-Key": "key-2"}, ttl=301)
    client.delete(first["id"])


def test_files_and_records_are_as_they_were(server, client, kept):
    client.put(kept, "file", b"content", more="&mode=0600")
    number = client.exec(kept, "echo said; exit 3")["id"]
    events = client.get(f"/v1/sandboxes/{kept}/events")["items"]
    client.create("ended")
    client.delete("ended")
    server.restart()
    assert client.read(kept, "file") == b"content"
    again = client.get(f"/v1/sandboxes/{kept}/execs/{number}")
    assert again["stdout"] == "said\n" and again["exit_code"] == 3
    assert client.get(f"/v1/sandboxes/{kept}/events")["items"][:len(events)] == events
    client.problem("GET", "/v1/sandboxes/ended", 410, "gone")


def test_b49_a_crash_during_a_create_leaves_one_or_none(server, client):
    for number, milliseconds in enumerate((0, 5, 20, 100, 400)):
        client.create(f"half-{number}", expect=202, wait=False)
        time.sleep(milliseconds / 1000)  # where in a create that is differs, and shall
        server.kill()
        server.start()
    for number in range(5):
        id = f"half-{number}"
        if client.settled(id) == "running":
            assert client.exec(id, ["true"])["exit_code"] == 0
        client.delete(id)


def test_b49_a_crash_during_a_delete_ends_it(server, client):
    """Or leaves it whole, where it came before the removal was on record: nobody was told that it was."""
    client.create("dying")
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(client.request, "DELETE", "/v1/sandboxes/dying")
        wait_until(lambda: lost.done() or client.request("GET", "/v1/sandboxes/dying").json().get("state") != "running")
        server.kill()
        lost.exception()
    server.start()
    if client.settled("dying") == "running":
        assert client.exec("dying", ["true"])["exit_code"] == 0
        client.delete("dying")
    assert client.wait_state("dying", "gone")["reason"] == "deleted"


def test_many_sandboxes_after_a_crash(server, client):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: client.create(f"n-{i}", labels={"many": "yes"}), range(10)))
    server.kill()
    server.start()
    with ThreadPoolExecutor(4) as pool:
        wait_until(lambda: len(client.list("&label=many=yes&state=running")) == 10)
        results = list(pool.map(lambda i: client.exec(f"n-{i}", ["echo", str(i)]), range(10)))
        list(pool.map(lambda i: client.delete(f"n-{i}"), range(10)))
    assert [result["stdout"] for result in results] == [f"{i}\n" for i in range(10)]
