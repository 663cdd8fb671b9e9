"""Secrets do not leave by accident: in output, files, ranges, errors, records and logs."""

import base64
import json
from urllib.parse import quote

import pytest

from server import wait_until

SECRET = "hunter2/pass word+é"


@pytest.fixture(scope="module")
def box(cloud):
    client = cloud.client()
    client.create("scrub", ttl=3600, secrets=[SECRET, "", "s3cr3t-token"], env={"TOKEN": SECRET})
    return "scrub"


def test_the_record_does_not_have_them(client, box):
    text = json.dumps(client.sandbox(box)) + json.dumps(client.list()) + client.request("GET", f"/v1/sandboxes/{box}/events").text
    assert "hunter2" not in text and "s3cr3t" not in text


def test_raw_form_in_output(client, box):
    result = client.exec(box, ["sh", "-c", 'echo "a $TOKEN b"; echo "$TOKEN" >&2'])
    assert result["stdout"] == "a *** b\n" and result["stderr"] == "***\n"
    assert result["stdout_bytes"] == len(f"a {SECRET} b\n".encode())


@pytest.mark.parametrize("form", [
    base64.b64encode(SECRET.encode()).decode(), SECRET.encode().hex(), SECRET.encode().hex().upper(), quote(SECRET, safe=""),
    json.dumps(SECRET)[1:-1], json.dumps(SECRET, ensure_ascii=False)[1:-1], base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
])
def test_other_forms(client, box, form):
    result = client.exec(box, ["printf", "<%s>", form])
    assert form not in result["stdout"] and "***" in result["stdout"], result["stdout"]


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


def test_errors_are_masked(client, box):
    problem = client.exec_problem(box, ["true"], 422, "workdir_not_found", workdir=f"/no/{SECRET}")
    assert "hunter2" not in json.dumps(problem["detail"], ensure_ascii=False)
    result = client.exec(box, [f"/no/{SECRET}"])
    assert "hunter2" not in json.dumps(result["error"], ensure_ascii=False)
    response = client.request("GET", client.file_url(box, f"no/{SECRET}/x"), 404)
    assert "hunter2" not in response.text


def test_raw_bytes_keep_their_length(client, box):
    data = b"x" * 1000 + SECRET.encode() + b"y" * 1000 + b"s3cr3t-token"
    client.put(box, "f", data)
    response = client.request("GET", client.file_url(box, "f"), 200)
    want = b"x" * 1000 + b"*" * len(SECRET.encode()) + b"y" * 1000 + b"*" * 12
    assert response.content == want
    assert response.headers["Content-Length"] == str(len(data))
    number = client.exec(box, ["cat", "f"])["id"]
    response = client.output(box, number)
    assert response.content == want and int(response.headers["Scrubbed"]) == 2


@pytest.mark.parametrize("start, end", [(1000, 1003), (1005, 1010), (990, 1001), (1015, 1040), (1000, 1023), (0, 999), (2020, 2035)])
def test_a_range_looks_beyond_its_ends(client, box, start, end):
    data = b"x" * 1000 + SECRET.encode() + b"y" * 1000 + b"s3cr3t-token"
    client.put(box, "r", data)
    want = b"x" * 1000 + b"*" * len(SECRET.encode()) + b"y" * 1000 + b"*" * 12
    response = client.request("GET", client.file_url(box, "r"), 206, headers={"Range": f"bytes={start}-{end}"})
    assert response.content == want[start:end + 1]
    number = client.exec(box, ["cat", "r"])["id"]
    assert client.output(box, number, offset=start).content == want[start:]


def test_a_secret_across_chunks(client, box):
    result = client.exec(box, ["sh", "-c", "printf 'hunter2/pa'; sleep 0.2; printf 'ss word+é'"])
    assert result["stdout"] == "***"
    for count in (32759, 32760, 65530, 131060):
        result = client.exec(box, ["python3", "-c", f"import os; print('z' * {count} + os.environ['TOKEN'], end='')"])
        assert result["stdout"] == "z" * count + "***"


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


def test_an_edit_does_not_store_the_mask(client, api, box):
    client.put(box, "e", f"key={SECRET}\nname=old\n".encode())
    client.request("PATCH", client.file_url(box, "e"), (200, 204), json={"old": "name=old", "new": "name=new", "count": 1})
    code, out, _ = api.node.container(box).run("cat", "/workspace/e")
    assert out == f"key={SECRET}\nname=new\n".encode()


def test_names_in_a_tree(client, box):
    client.exec(box, "mkdir -p d && touch d/s3cr3t-token.txt")
    assert "s3cr3t" not in client.request("GET", f"/v1/sandboxes/{box}/tree?path=d").text


def test_added_later(client, box):
    assert client.exec(box, ["echo", "later-secret"])["stdout"] == "later-secret\n"
    client.request("POST", f"/v1/sandboxes/{box}/secrets", 204, json={"values": ["later-secret", ""]})
    assert client.exec(box, ["echo", "later-secret"])["stdout"] == "***\n"
    # what was said before is masked on the way out
    texts = client.request("GET", f"/v1/sandboxes/{box}/execs?limit=500").text
    assert "later-secret" not in texts
    client.problem("GET", f"/v1/sandboxes/{box}/secrets", 405)
    client.problem("POST", f"/v1/sandboxes/{box}/secrets", 400, json={"values": "x"})
    client.problem("POST", f"/v1/sandboxes/{box}/secrets", 400, json={})


def test_one_character_and_none(client):
    client.create("short", secrets=["Q", ""])
    assert client.exec("short", ["echo", "aQb", "plain"])["stdout"] == "a***b plain\n"
    client.delete("short")
    client.create("empty", secrets=[""])
    assert client.exec("empty", ["echo", "abc"])["stdout"] == "abc\n"
    client.delete("empty")


def test_not_in_the_log_nor_in_the_journals(server, client, box):
    client.exec(box, ["echo", SECRET, "s3cr3t-token"])
    wait_until(lambda: client.sandbox(box)["running_execs"] == 0)
    assert "hunter2" not in server.log() and "s3cr3t-token" not in server.log()
    for path in server.dir.rglob("*"):
        if path.is_file() and path != server.log_file:
            assert b"s3cr3t-token" not in path.read_bytes(), path
