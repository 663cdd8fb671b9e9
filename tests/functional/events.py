"""The events of an execution, as a client reads them."""
import base64
import json

TYPES = {"ndjson": "application/x-ndjson", "sse": "text/event-stream"}


class Events:
    """The events of one reply, as they come."""

    def __init__(self, response, kind):
        assert response.status_code == 200, response.text
        assert response.headers["Content-Type"] == TYPES[kind]
        self.response, self.kind = response, kind
        self.items = []
        self.steps = self.parse()

    def __iter__(self):
        return self.steps

    def parse(self):
        ident = None
        for line in self.response.iter_lines(chunk_size=65536, delimiter=b"\n"):
            if self.kind == "sse" and line.startswith(b"id: "):
                ident = line[4:].decode()
            elif line.startswith(b"data: ") if self.kind == "sse" else line:
                event = json.loads(line[6:] if self.kind == "sse" else line)
                assert self.kind == "ndjson" or ident == event["id"]
                self.items.append(event)
                yield event

    def until(self, kind):
        """The next event of that type; those before it are only kept."""
        for event in self:
            if event["type"] == kind:
                return event
        raise AssertionError(f"no {kind} in {self.items}")

    def all(self):
        """Every event from the first on, after the last one has come."""
        for _ in self:
            pass
        return self.items

    def close(self):
        self.response.close()


def stream(client, box, cmd, kind="ndjson", headers=None, **body):
    cmd = ["sh", "-c", cmd] if isinstance(cmd, str) else cmd
    response = client.request("POST", f"/v1/sandboxes/{box}/execs", stream=True, headers={"Accept": TYPES[kind], **(headers or {})},
                              json={"cmd": cmd, **body})
    return Events(response, kind)


def follow(client, box, number, last=None, kind="ndjson"):
    headers = {"Accept": TYPES[kind], **({"Last-Event-ID": last} if last else {})}
    return Events(client.request("GET", f"/v1/sandboxes/{box}/execs/{number}", stream=True, headers=headers), kind)


def data_of(event):
    return base64.b64decode(event["data"]) if event["encoding"] == "base64" else event["data"].encode()


def joined(events, name="stdout"):
    """The bytes of a stream. Each piece begins where the one before ended."""
    data = b""
    for event in events:
        if event["type"] == name:
            assert event["offset"] == len(data)
            data += data_of(event)
    return data


def check_whole(events):
    """It begins and ends as it should; ids count."""
    assert events[0]["type"] == "started" and events[-1]["type"] in ("exit", "error")
    assert not [event for event in events[:-1] if event["type"] in ("exit", "error")]
    assert [int(event["id"].split(":")[0]) for event in events] == list(range(1, len(events) + 1))
