"""What happens to a sandbox, as a stream."""

import json
import threading

import pytest
from events import TYPES

from server import wait_until


class Feed:
    """(id as the stream has it, event) of one reply, as they come."""

    def __init__(self, client, id, kind, last=None, query=""):
        headers = {"Accept": TYPES[kind], **({"Last-Event-ID": str(last)} if last is not None else {})}
        self.response = client.request("GET", f"/v1/sandboxes/{id}/events{query}", 200, stream=True, headers=headers)
        assert self.response.headers["Content-Type"] == TYPES[kind]
        self.kind = kind
        self.steps = self.parse()

    def __iter__(self):
        return self.steps

    def parse(self):
        ident = None
        for line in self.response.iter_lines(chunk_size=1, delimiter=b"\n"):
            if line.startswith(b"id: "):
                ident = int(line[4:])
            elif line.startswith(b"data: ") if self.kind == "sse" else line:
                event = json.loads(line.removeprefix(b"data: "))
                assert self.kind == "ndjson" or event["type"] in ("heartbeat", "error") or ident == event["id"]
                yield event

    def until(self, type):
        seen = []
        for event in self:
            seen.append(event)
            if event["type"] == type:
                return seen
        raise AssertionError(f"no {type} in {seen}")


def listed(client, id):
    return client.get(f"/v1/sandboxes/{id}/events?limit=500")["items"]


@pytest.mark.parametrize("kind", TYPES)
def test_all_of_a_life_once_and_in_order(client, kind):
    id = client.create()["id"]
    ends = threading.Timer(0.3, client.delete, [id])
    ends.start()
    seen = [event for event in Feed(client, id, kind) if event["type"] != "heartbeat"]
    ends.join()
    assert [event["type"] for event in seen][-1] == "gone" and {"running", "deleting"} <= {event["type"] for event in seen}
    assert seen == listed(client, id)


def test_goes_on_behind_the_last_one(client, sandbox):
    first = Feed(client, sandbox, "sse").until("running")
    later = Feed(client, sandbox, "sse", last=first[-1]["id"])
    client.request("PATCH", f"/v1/sandboxes/{sandbox}", (200,), json={"labels": {"a": "b"}})
    client.delete(sandbox)
    seen = later.until("gone")
    assert all(event["type"] == "heartbeat" or event["id"] > first[-1]["id"] for event in seen)
    again = [event for event in Feed(client, sandbox, "ndjson", query=f"?after={first[-1]['id']}")]
    assert again == [event for event in seen if event["type"] != "heartbeat"]


def test_of_one_that_is_gone(client):
    id = client.create()["id"]
    client.delete(id)
    wait_until(lambda: any(event["type"] == "gone" for event in listed(client, id)), what="its last event")
    assert list(Feed(client, id, "ndjson")) == listed(client, id)
    assert list(Feed(client, id, "ndjson", last=listed(client, id)[-1]["id"])) == []


def test_silence_is_told_from_an_end(client, sandbox):
    assert Feed(client, sandbox, "sse").until("heartbeat")


def test_what_is_no_id(client, sandbox):
    problem = client.problem("GET", f"/v1/sandboxes/{sandbox}/events", 400, "invalid_field",
                             headers={"Accept": TYPES["sse"], "Last-Event-ID": "5:0:0"})
    assert "Last-Event-ID" in problem["detail"]


def test_the_server_stops(fresh):
    server = fresh("--stop-timeout", "20").start()
    client = server.client()
    id = client.create()["id"]
    feed = Feed(client, id, "ndjson")
    feed.until("running")
    stops = threading.Thread(target=server.stop)
    stops.start()
    assert feed.until("error")[-1]["error"]["code"] == "stopping"
    stops.join()


def test_many_who_leave_cost_nothing(server, client, sandbox):
    """Each holds a descriptor while it listens, and no longer."""
    before = server.usage()["fds"]
    for _ in range(5):
        feeds = [Feed(client, sandbox, "sse", query=f"?after={i}") for i in range(10)]
        for feed in feeds:
            feed.response.close()
    wait_until(lambda: server.usage()["fds"] <= before + 2, what="the streams to be closed")
