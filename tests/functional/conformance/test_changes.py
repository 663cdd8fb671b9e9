"""What has become of files since somebody looked."""

import pytest

pytestmark = pytest.mark.needs("programs", "posix_files")


def look(client, box, since=None, path="c"):
    return client.get(f"/v1/sandboxes/{box}/changes?path={path}" + (f"&since={since}" if since else ""))


def paths(changes):
    return tuple([entry["path"] for entry in changes[kind]] for kind in ("added", "changed", "removed"))


@pytest.fixture
def room(client, box):
    client.exec(box, "mkdir -p c/d/e c/.git; cd c; for f in kept edited touched moved d/gone d/e/deep d-x d.y; do echo 1 > $f; done; ln -s kept link")
    yield box
    client.exec(box, "rm -rf c")


def test_added_changed_removed(client, room):
    first = look(client, room)
    assert paths(first) == ([], [], []) and first["root"] == "/workspace/c"
    client.exec(room, "cd c; echo 2 > edited; touch touched; mv moved z; rm d/gone; mkdir new; echo n > new/f; chmod 700 d; echo h > .git/HEAD; ln -sf edited link")
    second = look(client, room, first["token"])
    assert paths(second) == (["new", "new/f", "z"], ["d", "edited", "link", "touched"], ["d/gone", "moved"])
    edited = next(entry for entry in second["changed"] if entry["path"] == "edited")
    assert (edited["type"], edited["size"], edited["mode"]) == ("file", 2, "0644") and edited["mtime"] and edited["etag"]
    assert paths(look(client, room, second["token"])) == ([], [], [])
    assert paths(look(client, room, first["token"])) == paths(second)  # any former one


def test_since_the_creation(client):
    """All that is in the workdir has come since; what came and went has not."""
    id = client.create()["id"]
    whole = client.get(f"/v1/sandboxes/{id}/changes?since=create")
    assert paths(whole) == ([], [], [])
    client.exec(id, "mkdir c; echo 1 > c/f; echo 2 > g; echo 3 > h; rm h")
    assert paths(client.get(f"/v1/sandboxes/{id}/changes?since=create")) == (["c", "c/f", "g"], [], [])
    below = look(client, id, "create")
    assert paths(below) == (["f"], [], []) and paths(look(client, id, below["token"])) == ([], [], [])
    client.delete(id, expect=(202, 204))


def test_a_change_that_hides_itself(client, room):
    """The same size and time of content: the time of status tells."""
    first = look(client, room)
    client.exec(room, "cd c; touch -r edited ../time; printf '9\\n' > edited; touch -r ../time edited; rm ../time")
    assert paths(look(client, room, first["token"])) == ([], ["edited"], [])


def test_a_file_becomes_a_directory(client, room):
    first = look(client, room)
    client.exec(room, "cd c; rm d-x; mkdir d-x; rm -r d; echo f > d")
    assert paths(look(client, room, first["token"])) == (["d", "d-x"], [], ["d-x", "d", "d/e", "d/e/deep", "d/gone"])


def test_tokens(client, room):
    token = look(client, room)["token"]
    for since, path in ((token, "c/d"), ("0" * 32, "c"), ("x", "c")):
        client.problem("GET", f"/v1/sandboxes/{room}/changes?path={path}&since={since}", 404, "not_found")
    for since, path in (("exec:1", "c"), ("create", "/tmp"), ("create", "c/../.."), ("create", "/workspaces")):
        client.problem("GET", f"/v1/sandboxes/{room}/changes?path={path}&since={since}", 422, "not_supported")
    other = client.create()["id"]
    client.exec(other, "mkdir c")
    client.problem("GET", f"/v1/sandboxes/{other}/changes?path=c&since={token}", 404, "not_found")
    client.problem("GET", f"/v1/sandboxes/{room}/changes?path=c/kept", 409, "not_directory")
    client.delete(other, expect=(202, 204))
