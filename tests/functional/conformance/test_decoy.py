"""A decoy: a value made for one sandbox, in a variable, whose appearance in the output of a command is told and masked."""

import json

import pytest

from events import data_of, stream
from server import wait_until

NAME = "AWS_SECRET_ACCESS_KEY"
programs = pytest.mark.needs("programs")


def sightings(client, id):
    return [event["detail"] for event in client.get(f"/v1/sandboxes/{id}/events")["items"] if event["type"] == "decoy_seen"]


def seen(client, id):
    return client.sandbox(id)["decoy"]


@pytest.fixture
def trap(client):
    record = client.create(ttl=3600, decoy={"env": NAME}, secrets=["another-s3cr3t"])
    assert record["decoy"] == {"env": NAME, "seen": 0, "seen_at": None}
    yield record["id"]
    client.delete(record["id"], expect=(202, 204))


@programs
def test_who_shows_it_is_told_of(client, trap):
    quiet = client.exec(trap, f'test ${{#{NAME}}} -eq 40 && printf %s "${NAME}" > kept && echo another-s3cr3t && echo AKIA')
    assert quiet["stdout"] == "***\nAKIA\n" and seen(client, trap)["seen"] == 0 and sightings(client, trap) == []
    loud = client.exec(trap, f'echo "${NAME}"; echo "${NAME}"; echo "${NAME}" >&2')
    assert (loud["stdout"], loud["stderr"]) == ("***\n***\n", "***\n")
    wait_until(lambda: seen(client, trap)["seen"] == 1, what="the first sighting")
    first, = wait_until(lambda: sightings(client, trap), what="its event")
    assert first["exec"] == loud["id"] and first["stream"] in ("stdout", "stderr") and set(first) == {"exec", "stream"}
    assert seen(client, trap)["seen_at"].endswith("Z")
    encoded = client.exec(trap, "base64 kept >&2")
    assert encoded["stderr"].startswith("***")
    wait_until(lambda: [one["exec"] for one in sightings(client, trap)] == [loud["id"], encoded["id"]], what="the second event")
    assert sightings(client, trap)[1]["stream"] == "stderr" and seen(client, trap)["seen"] == 2


@programs
def test_in_pieces_and_as_a_stream(client, trap):
    cut = f'python3 -c "import os, sys, time\nfor c in os.environ[\'{NAME}\']:\n sys.stdout.write(c); sys.stdout.flush(); time.sleep(.002)"'
    events = list(stream(client, trap, ["sh", "-c", cut]))
    text = b"".join(data_of(event) for event in events if event["type"] == "stdout").decode()
    assert text.endswith("***") and len(text) <= 13
    wait_until(lambda: [one["exec"] for one in sightings(client, trap)] == [events[0]["exec"]], what="the event")


@programs
def test_it_is_another_one_each_time_and_never_shown(client, trap):
    other = client.create(decoy={"env": NAME})["id"]
    prints = f"python3 -c \"import os, hashlib; print(hashlib.sha256(os.environ['{NAME}'].encode()).hexdigest())\""
    digests = {client.exec(id, prints)["stdout"] for id in (trap, other)}
    assert len(digests) == 2
    client.delete(other, expect=(202, 204))
    gone = client.request("GET", f"/v1/sandboxes/{other}").json()
    assert "decoy" in json.dumps(gone)


def check_survival(server, forget):
    client = server.client()
    id = client.create("trap", ttl=3600, decoy={"env": NAME})["id"]
    client.exec(id, f'echo "${NAME}"')
    wait_until(lambda: seen(client, id)["seen"] == 1, what="the first sighting")
    server.stop()
    forget()
    server.start()
    client = server.client()
    client.wait_state(id, "running")
    assert seen(client, id)["seen"] == 1 and seen(client, id)["env"] == NAME
    again = client.exec(id, f'echo "${NAME}"')
    assert again["stdout"] == "***\n"
    wait_until(lambda: seen(client, id)["seen"] == 2, what="the second sighting")
    client.delete(id, expect=(202, 204))


@pytest.mark.needs("programs", "adoption")
def test_it_outlives_the_server(fresh):
    check_survival(fresh().start(), lambda: None)


@pytest.mark.needs("programs", "adoption")
def test_it_outlives_the_store(fresh):
    server = fresh().start()
    check_survival(server, server.forget)


@pytest.mark.parametrize("field, spec", [
    ("decoy.env", {"decoy": {}}), ("decoy.env", {"decoy": {"env": "1x"}}), ("decoy.env", {"decoy": {"env": "A=B"}}),
    ("decoy.env", {"decoy": {"env": "A"}, "env": {"A": "mine"}}), ("decoy.path", {"decoy": {"env": "A", "path": "/x"}}), ("decoy", {"decoy": True}),
])
def test_what_is_no_decoy(client, field, spec):
    assert f"'{field}'" in client.create_problem(400, "invalid_field", **spec)["detail"]
