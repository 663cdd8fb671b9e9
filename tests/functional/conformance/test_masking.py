"""Secrets do not leave by accident: in output, files, ranges, errors, records and logs."""

import base64
import json
import mmap
from urllib.parse import quote

import pytest

from server import wait_until

SECRET = "hunter2/pass word+é"
programs = pytest.mark.needs("programs")


@pytest.fixture(scope="module")
def box(cloud):
    client = cloud.client()
    record = client.create(ttl=3600, secrets=[SECRET, "", "s3cr3t-token"], env={"TOKEN": SECRET})
    yield record["id"]
    client.delete(record["id"], expect=(202, 204))


def test_records_do_not_have_them(client, box):
    text = json.dumps(client.sandbox(box)) + json.dumps(client.list()) + client.request("GET", f"/v1/sandboxes/{box}/events").text
    assert "hunter2" not in text and "s3cr3t" not in text


def test_what_callers_wrote_into_a_record_is_masked(client):
    image = client.image
    record = client.create(secrets=[image, "hidden-label"], labels={"note": "hidden-label", "other": "plain"})
    for shown in (record, client.sandbox(record["id"]), next(item for item in client.list() if item["id"] == record["id"])):
        assert shown["image"] == "***" and shown["labels"] == {"note": "***", "other": "plain"}
    client.delete(record["id"], expect=(202, 204))
    gone = client.problem("GET", f"/v1/sandboxes/{record['id']}", 410)["sandbox"]
    assert gone["image"] == "***" and gone["labels"]["note"] == "***"


@programs
def test_raw_form_in_output(client, box):
    result = client.exec(box, ["sh", "-c", 'echo "a $TOKEN b"; echo "$TOKEN" >&2'])
    assert result["stdout"] == "a *** b\n" and result["stderr"] == "***\n"
    assert result["stdout_bytes"] == len(f"a {SECRET} b\n".encode())
    size = client.exec(box, 'printf %s "$TOKEN" | wc -c')["stdout"].strip()
    assert size == str(len(SECRET.encode()))  # inside it is whole


@programs
@pytest.mark.parametrize("form", [
    base64.b64encode(SECRET.encode()).decode(), SECRET.encode().hex(), SECRET.encode().hex().upper(), quote(SECRET, safe=""),
    json.dumps(SECRET)[1:-1], json.dumps(SECRET, ensure_ascii=False)[1:-1], base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
])
def test_other_forms(client, box, form):
    result = client.exec(box, ["printf", "<%s>", form])
    assert form not in result["stdout"] and "***" in result["stdout"], result["stdout"]


@programs
@pytest.mark.parametrize("lead", ["", "a", "ab", "user:"])
def test_base64_at_any_offset(client, box, lead):
    """Encoded together with what stands around it, as in an Authorization header."""
    form = base64.b64encode((lead + SECRET + "tail").encode()).decode()
    first, last = -(-len(lead) * 4 // 3) + 1, (len(lead) + len(SECRET.encode())) * 4 // 3 - 1
    assert form[first:last] not in client.exec(box, ["printf", "%s", form])["stdout"]


def test_the_command_itself_is_masked(client, box):
    result = client.exec(box, ["echo", SECRET])
    assert "hunter2" not in json.dumps(result, ensure_ascii=False)
    assert "hunter2" not in client.request("GET", f"/v1/sandboxes/{box}/execs").text


@programs
def test_errors_are_masked(client, box):
    problem = client.exec_problem(box, ["true"], 422, "workdir_not_found", workdir=f"/no/{SECRET}")
    assert "hunter2" not in json.dumps(problem["detail"], ensure_ascii=False)
    result = client.exec(box, [f"/no/{SECRET}"])
    assert "hunter2" not in json.dumps(result["error"], ensure_ascii=False)
    response = client.request("GET", client.file_url(box, f"no/{SECRET}/x"), 404)
    assert "hunter2" not in response.text


DATA = b"x" * 1000 + SECRET.encode() + b"y" * 1000 + b"s3cr3t-token"
MASKED = b"x" * 1000 + b"*" * len(SECRET.encode()) + b"y" * 1000 + b"*" * 12
RANGES = [(1000, 1003), (1005, 1010), (990, 1001), (1015, 1040), (1000, 1023), (0, 999), (2020, 2035)]


def test_raw_bytes_of_files_keep_their_length(client, box):
    client.put(box, "f", DATA)
    response = client.request("GET", client.file_url(box, "f"), 200)
    assert response.content == MASKED
    assert response.headers["Content-Length"] == str(len(DATA)) and response.headers["Scrubbed"] == "2"


def test_a_range_of_a_file_looks_beyond_its_ends(client, box):
    client.put(box, "r", DATA)
    for start, end in RANGES:
        response = client.request("GET", client.file_url(box, "r"), 206, headers={"Range": f"bytes={start}-{end}"})
        assert response.content == MASKED[start:end + 1], (start, end)


@programs
def test_raw_bytes_of_output_keep_their_length(client, box):
    client.put(box, "o", DATA)
    number = client.exec(box, ["cat", "o"])["id"]
    response = client.output(box, number)
    assert response.content == MASKED and response.headers["Scrubbed"] == "2"
    for start, _ in RANGES:
        assert client.output(box, number, offset=start).content == MASKED[start:], start


@programs
def test_a_secret_across_chunks(client, box):
    result = client.exec(box, ["sh", "-c", "printf 'hunter2/pa'; sleep 0.2; printf 'ss word+é'"])
    assert result["stdout"] == "***"
    for count in (32759, 32760, 65530, 131060):
        result = client.exec(box, ["python3", "-c", f"import os; print('z' * {count} + os.environ['TOKEN'], end='')"])
        assert result["stdout"] == "z" * count + "***"


@programs
def test_at_the_edge_of_what_is_kept(client, box):
    """Head and tail are cut so that no part of a secret shows at the cut."""
    for lead in range(40, 62):
        result = client.exec(box, ["python3", "-c", f"import os; print('z' * {lead} + os.environ['TOKEN'] + 'w' * 500 + "
                                                    f"os.environ['TOKEN'] + 'v' * {lead}, end='')"], max_output=120)
        assert not any(part in result["stdout"] for part in ("hunt", "pass", "word")), (lead, result["stdout"])


def test_files_as_json(client, box):
    client.put(box, "j", f"a {SECRET} b".encode())
    body = client.request("GET", client.file_url(box, "j"), 200, headers={"Accept": "application/json"}).json()
    assert body["content"] == "a *** b" and body["scrubbed"] == 1


@programs
def test_an_edit_does_not_store_the_mask(client, box):
    client.put(box, "e", f"key={SECRET}\nname=old\n".encode())
    client.request("PATCH", client.file_url(box, "e"), 200, json={"old": "name=old", "new": "name=new", "count": 1})
    assert client.exec(box, 'test "$(cat e)" = "$(printf "key=$TOKEN\nname=new")"')["exit_code"] == 0


def test_names_in_a_tree(client, box):
    client.put(box, "d/s3cr3t-token.txt", b"1")
    listing = client.request("GET", f"/v1/sandboxes/{box}/tree?path=d").text
    assert "s3cr3t" not in listing and "***.txt" in listing


@pytest.mark.needs("programs", "previews")
def test_in_a_preview_that_fails(client, box):
    problem = client.problem("POST", f"/v1/sandboxes/{box}/previews", 502, "service_failed",
                             json={"command": ["sh", "-c", 'echo "cannot listen with $TOKEN" >&2; exit 4'], "port": 9100})
    assert "cannot listen with ***" in problem["detail"]


@programs
def test_added_later(client, box):
    assert client.exec(box, ["echo", "later-secret"])["stdout"] == "later-secret\n"
    client.request("POST", f"/v1/sandboxes/{box}/secrets", 204, json={"values": ["later-secret", ""]})
    assert client.exec(box, ["echo", "later-secret"])["stdout"] == "***\n"
    # what was said before is masked on the way out
    assert "later-secret" not in client.request("GET", f"/v1/sandboxes/{box}/execs?limit=500").text


def test_added_later_in_files(client, box):
    client.put(box, "later", b"a later-file-secret b")
    client.request("POST", f"/v1/sandboxes/{box}/secrets", 204, json={"values": ["", "later-file-secret"]})
    assert client.read(box, "later") == b"a ***************** b"
    client.problem("GET", f"/v1/sandboxes/{box}/secrets", 405)
    client.problem("POST", f"/v1/sandboxes/{box}/secrets", 400, json={"values": "x"})
    client.problem("POST", f"/v1/sandboxes/{box}/secrets", 400, json={})


def test_one_character_and_none(client):
    id = client.create(secrets=["Q", ""])["id"]
    client.put(id, "f", b"aQbQ plain")
    assert client.read(id, "f") == b"a*b* plain"
    client.delete(id)
    id = client.create(secrets=[""])["id"]
    client.put(id, "f", b"abc")
    assert client.read(id, "f") == b"abc"
    client.delete(id)


def test_neither_in_the_log_nor_in_the_journals(server, client, box):
    client.exec(box, ["echo", SECRET, "s3cr3t-token"])
    wait_until(lambda: client.sandbox(box)["running_execs"] == 0)
    assert "hunter2" not in server.log() and "s3cr3t-token" not in server.log()
    for path in server.dir.rglob("*"):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                assert content.find(b"s3cr3t-token") < 0, path
