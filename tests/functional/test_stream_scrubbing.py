"""Secrets in output as it comes: cut at every byte, in each encoding, quickly and slowly."""

import base64
import json
from urllib.parse import quote

import pytest

from events import data_of, follow, joined, stream
from server import wait_until

SECRET = 'pa"ss/wörd+of~48&bytes?'
FORMS = {
    "raw": SECRET,
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "base64url": base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
    "hex": SECRET.encode().hex(),
    "HEX": SECRET.encode().hex().upper(),
    "url": quote(SECRET, safe=""),
    "json": json.dumps(SECRET)[1:-1],
}
WRITER = r"""
import os, sys, time
form, pause = os.fsencode(sys.argv[1]), float(sys.argv[2])
for cut in range(1, len(form)):
    for part in (form[:cut], form[cut:] + b"\n"):
        sys.stdout.buffer.write(part); sys.stdout.buffer.flush(); time.sleep(pause)
"""


@pytest.fixture(scope="module")
def box(cloud):
    client = cloud.client()
    client.create("scrubbed", ttl=3600, secrets=[SECRET, "aab"])
    client.put("scrubbed", "writer.py", WRITER.encode())
    return "scrubbed"


def shown_max(form):
    return max(4, len(form.encode()) // 4)


def texts(events):
    return "".join(data_of(event).decode() for event in events if event["type"] == "stdout")


@pytest.mark.parametrize("form", FORMS)
def test_cut_at_every_byte_in_20_ms(client, box, form):
    """Two pieces 20 ms apart: nothing of it is shown, since a beginning is held for longer than that. Where the machine
    was so slow that it was not, no more than the stated part."""
    events = list(stream(client, box, ["python3", "writer.py", FORMS[form], "0.02"]))
    lines = texts(events).split("\n")[:-1]
    assert len(lines) == len(FORMS[form].encode()) - 1
    for line in lines:
        assert line.endswith("***") and len(line.encode()) - 3 <= shown_max(FORMS[form]), line
    assert lines.count("***") > len(lines) / 2
    again = texts(follow(client, box, events[0]["exec"]))
    assert again == "***\n" * len(lines)


@pytest.mark.parametrize("form", FORMS)
def test_slow_pieces_show_no_more_than_the_stated_part(client, box, form):
    secret = FORMS[form].encode()
    events = list(stream(client, box, ["python3", "-c", WRITER.replace("range(1, len(form))", "range(1, len(form), 4)"), FORMS[form], "0.09"]))
    for line in texts(events).split("\n")[:-1]:
        assert line.endswith("***"), line
        assert secret.startswith(line.removesuffix("***").encode()) and len(line.encode()) - 3 <= shown_max(FORMS[form]), line


def test_what_only_looks_like_a_secret_is_given_while_the_command_waits(client, box):
    short = SECRET[:4]
    events = stream(client, box, ["sh", "-c", 'printf %s "$0"; while [ ! -e given ]; do sleep 0.02; done; echo " and more"', short])
    assert events.until("stdout")["data"] == short
    client.put(box, "given", b"")
    assert joined(events.all()) == short.encode() + b" and more\n"


def test_most_of_a_secret_is_held_until_it_is_decided(client, box):
    most = SECRET[:-2]
    events = stream(client, box, ["sh", "-c", 'printf "see %s" "$0"; while [ ! -e decided ]; do sleep 0.02; done; echo no', most])
    assert events.until("stdout")["data"] == "see "
    wait_until(lambda: client.get(f"/v1/sandboxes/{box}/execs/{events.items[0]['exec']}")["stdout_bytes"] == 4 + len(most.encode()))
    client.put(box, "decided", b"")
    assert joined(events.all()).decode() == f"see {most}no\n"


def test_a_beginning_at_the_end_is_given(client, box):
    assert texts(stream(client, box, ["printf", "%s", "aab aa"])) == "*** aa"


def test_bytes_that_are_no_text_are_masked_too(client, box):
    events = list(stream(client, box, ["printf", "%b", "\\0377" + SECRET + "\\0376"]))
    assert joined(events) == b"\xff" + b"*" * len(SECRET.encode()) + b"\xfe"


def test_a_secret_that_is_added_meanwhile(client, box):
    events = stream(client, box, "echo new-secret-value; while [ ! -e added ]; do sleep 0.02; done; echo new-secret-value")
    events.until("stdout")
    client.request("POST", f"/v1/sandboxes/{box}/secrets", (200, 201, 204), json={"values": ["new-secret-value"]})
    client.put(box, "added", b"")
    assert texts(events.all()) == "new-secret-value\n***\n"
    assert texts(follow(client, box, events.items[0]["exec"])) == "***\n***\n"
