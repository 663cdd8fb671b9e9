"""Files that are watched."""

import json
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from events import TYPES
from server import wait_until

pytestmark = pytest.mark.needs("programs", "posix_files")


class Watch:
    def __init__(self, client, box, path="w", recursive=True, kind="ndjson"):
        client.exec(box, f"mkdir -p {path}")
        self.kind = kind
        self.response = client.request("GET", f"/v1/sandboxes/{box}/files/watch?path={quote(path)}&recursive={'true' if recursive else 'false'}", 200,
                                       stream=True, headers={"Accept": TYPES[kind]})
        assert self.response.headers["Content-Type"] == TYPES[kind]
        self.lines = self.response.iter_lines(chunk_size=None)
        self.seen = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.response.close()

    def __iter__(self):
        for line in self.lines:
            if line and self.kind == "sse":
                assert line.startswith(b"data: ")
            if line:
                event = json.loads(line[6:] if self.kind == "sse" else line)
                self.seen.append(event)
                yield event

    def until(self, type, path, **more):
        wanted = {"type": type, "path": path, **more}
        for event in self:
            if wanted.items() <= event.items():
                return event
            if event["type"] == "heartbeat":
                break  # nothing more will come
        raise AssertionError(f"no {wanted} in {self.seen}")

    def of(self, path):
        return [event["type"] for event in self.seen if event.get("path") == path]


@pytest.fixture
def room(client, box):
    yield box
    client.exec(box, "rm -rf w other")


@pytest.mark.parametrize("kind", ["ndjson", "sse"])
def test_what_happens_is_told(client, room, kind):
    with Watch(client, room, kind=kind) as watch:
        client.exec(room, "cd w; echo a > f; sleep 0.1; echo b >> f; sleep 0.1; chmod 600 f; sleep 0.1; mv f g; rm g; mkdir d; rmdir d")
        watch.until("deleted", "d", directory=True)
        assert watch.of("f")[:4] == ["created", "modified", "attrib"] or watch.of("f")[:1] == ["created"] and "attrib" in watch.of("f"), watch.seen
        moved = next(event for event in watch.seen if event["type"] == "moved")
        assert (moved["from"], moved["path"], moved["directory"]) == ("f", "g", False)
        assert watch.of("g")[-1] == "deleted" and watch.of("d") == ["created", "deleted"]


def test_new_directories_are_followed(client, room):
    """Also when they are moved: within what is watched, out of it, and in again."""
    with Watch(client, room) as watch:
        client.exec(room, "cd w; mkdir -p a/b/c; echo x > a/b/c/f")
        watch.until("created", "a/b/c/f")
        client.exec(room, "cd w; mv a z; echo y > z/b/new")
        watch.until("moved", "z", directory=True, **{"from": "a"})
        watch.until("created", "z/b/new")
        client.exec(room, "mkdir other; mv w/z other/; echo n > other/z/b/unseen; touch w/end")
        watch.until("created", "end")
        assert watch.of("z")[-1] == "deleted" and not [event for event in watch.seen if "unseen" in event.get("path", "")]
        client.exec(room, "mv other/z w/back")
        watch.until("created", "back/b/c/f")
        client.exec(room, "mkdir w/fast; mv w/fast w/faster; mkdir w/faster/deep; touch w/faster/deep/f")
        watch.until("created", "faster/deep/f")


def test_not_below_unless_it_is_asked_for(client, room):
    client.exec(room, "mkdir -p w/below")
    with Watch(client, room, recursive=False) as watch:
        client.exec(room, "touch w/below/unseen; touch w/end")
        watch.until("created", "end")
        assert not [event for event in watch.seen if "unseen" in event.get("path", "")]


def test_a_file_and_its_end(client, room):
    client.exec(room, "mkdir -p w; echo 1 > w/file")
    response = client.request("GET", f"/v1/sandboxes/{room}/files/watch?path=w/file", 200, stream=True)
    lines = response.iter_lines(chunk_size=None)
    client.exec(room, "echo 2 >> w/file")
    assert json.loads(next(lines)) == {"type": "modified", "path": "file", "directory": False}
    client.exec(room, "rm w/file")
    last = [json.loads(line) for line in lines][-1]
    client.problem("GET", f"/v1/sandboxes/{room}/files/watch?path=not-there", 404, "file_not_found")
    assert last["type"] == "error" and last["error"]["code"] == "file_not_found"


def test_many_changes_of_one_file_are_few_events(client, room):
    client.exec(room, "mkdir w; touch w/busy")
    with Watch(client, room) as watch:
        client.exec(room, "cd w; i=0; while [ $i -lt 2000 ]; do echo $i >> busy; i=$((i+1)); done; touch end")
        watch.until("created", "end")
        assert 1 <= watch.of("busy").count("modified") < 1000


def test_an_overflow_is_told(client, room):
    """A reader that stands still, while more happens than the kernel keeps."""
    with Watch(client, room) as watch:
        client.exec(room, "cd w; i=0; while [ $i -lt 60 ]; do n=$(printf %0200d $i); mkdir $n; cd $n; touch a b; cd ..; i=$((i+1)); done;"
                          "for k in 1 2 3; do for d in 0*; do mv $d x$d; mv x$d $d; touch $d/c$k; chmod 700 $d/a; rm $d/c$k; done; done; touch end")
        for event in watch:
            if event["type"] == "overflow" or event.get("path") == "end":
                break
        client.exec(room, "mkdir w/after; sleep 0.2; touch w/after/end2")
        watch.until("created", "after/end2")  # it goes on either way


def test_names_and_secrets(client):
    box = client.create(secrets=["hide-me-12345"])["id"]
    try:
        with Watch(client, box) as watch:
            client.exec(box, "cd w; touch 'a b' hide-me-12345 $(printf 'x\\377'); touch end")
            watch.until("created", "end")
            assert watch.of("a b") == ["created", "attrib"] or watch.of("a b")[0] == "created"
            assert "created" in watch.of("***") and "created" in watch.of("eP8=") and "hide-me" not in str(watch.seen)
    finally:
        client.delete(box, expect=(202, 204))


def test_too_many_and_gone_clients(client):
    """Each that is closed makes room for another."""
    room = client.create()["id"]
    watches = [Watch(client, room) for _ in range(16)]
    problem = client.problem("GET", f"/v1/sandboxes/{room}/files/watch?path=w", 429, "too_many")
    assert problem["headers"]["Retry-After"]
    for watch in watches:
        watch.response.close()

    def once_more():
        response = client.request("GET", f"/v1/sandboxes/{room}/files/watch?path=w", (200, 429), stream=True)
        response.close()
        return response.status_code == 200
    wait_until(once_more)
    client.delete(room, expect=(202, 204))


def test_the_end_of_the_sandbox_is_the_last_event(client):
    box = client.create()["id"]
    with Watch(client, box) as watch, ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, watch)
        client.delete(box, expect=(202, 204))
        last = rest.result(60)[-1]
    assert last["type"] == "error" and last["error"]["code"] in ("gone", "stream_lost", "deleted"), last


def test_the_end_of_the_server_is_the_last_event(fresh):
    server = fresh().start()
    client = server.client()
    box = client.create()["id"]
    with Watch(client, box) as watch, ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, watch)
        server.stop()
        assert rest.result(60)[-1]["error"]["code"] == "stopping"
