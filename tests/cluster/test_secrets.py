"""A registered secret never appears: not in output, nor in files, ranges, listings of what ran, errors or logs, and neither
in the pod, in etcd, nor in a process's argument list."""

import base64
import json
import mmap
import urllib.parse

import pytest

from cluster import NAMESPACE, kubectl

SECRET = "s3cr3t-t0ken-of-the-test"
LATER = "registered/later+1"
FORMS = [SECRET, base64.b64encode(SECRET.encode()).decode(), SECRET.encode().hex(), LATER, urllib.parse.quote(LATER, safe="")]


@pytest.fixture(scope="module")
def box(cloud):
    client = cloud.client()
    record = client.create(ttl=3600, secrets=[SECRET, ""], env={"TOKEN": SECRET})
    client.request("POST", f"/v1/sandboxes/{record['id']}/secrets", 204, json={"values": ["", LATER]})
    yield record["id"]
    client.delete(record["id"])


def test_printed(client, box):
    result = client.exec(box, "echo is $TOKEN is; echo $TOKEN >&2; printf %s $TOKEN | base64; printf %s $TOKEN | od -An -tx1 | tr -d ' \\n'")
    assert result["stdout"].startswith("is *** is\n***") and result["stderr"] == "***\n"
    assert not any(form in json.dumps(result) for form in FORMS)
    assert client.exec(box, ["printf", "%s", LATER])["stdout"] == "***"
    assert len(client.exec(box, "printf %s $TOKEN | wc -c")["stdout"]) > 0
    assert client.exec(box, "printf %s $TOKEN | wc -c")["stdout"].strip() == str(len(SECRET))  # inside it is whole


def test_printed_in_pieces(client, box):
    script = "import sys, time\nfor c in sys.argv[1]:\n sys.stdout.write(c); sys.stdout.flush(); time.sleep(0.01)\n"
    result = client.exec(box, ["python3", "-c", script, SECRET])
    assert result["stdout"] == "***"
    raw = client.output(box, result["id"])
    assert raw.content == b"*" * len(SECRET)


def test_read_from_a_file_whole_and_by_range(client, box):
    text = f"before {SECRET} after"
    client.put(box, "with-secret", text)
    masked = text.replace(SECRET, "*" * len(SECRET)).encode()
    answer = client.request("GET", client.file_url(box, "with-secret"), 200)
    assert answer.content == masked and answer.headers["Scrubbed"] == "1"
    for first, last in ((0, 9), (9, 12), (10, 40), (7, 7), (20, len(text) - 1)):
        part = client.request("GET", client.file_url(box, "with-secret"), 206, headers={"Range": f"bytes={first}-{last}"})
        assert part.content == masked[first:last + 1]
    as_json = client.request("GET", client.file_url(box, "with-secret"), 200, headers={"Accept": "application/json"}).json()
    assert as_json["content"] == "before *** after" and as_json["scrubbed"] == 1 and as_json["size"] == len(text)
    assert client.exec(box, ["wc", "-c", "with-secret"])["stdout"].split()[0] == str(len(text))  # the file is whole
    client.request("PATCH", client.file_url(box, "with-secret"), 200, json={"old": "before", "new": "behind"})
    assert client.exec(box, ["grep", "-c", "behind " + SECRET, "with-secret"])["stdout"] == "1\n"  # no mask is stored


def test_quoted_in_errors_and_records(client, box):
    for problem in (client.problem("GET", client.file_url(box, f"/none/{SECRET}"), 404),
                    client.exec_problem(box, ["true"], 422, "workdir_not_found", workdir=f"/none/{SECRET}")):
        assert SECRET not in json.dumps({k: v for k, v in problem.items() if k != "headers"}) and "***" in problem["detail"]
    missing = client.exec(box, [f"/none/{SECRET}"])
    assert missing["error"]["code"] == "command_not_found" and SECRET not in json.dumps(missing)
    client.put(box, f"names/{SECRET}", b"x")
    everything = [client.get(f"/v1/sandboxes/{box}{more}") for more in ("", "/execs", "/events", "/tree", "/tree?format=paths", "/previews")]
    everything += [client.get("/v1/sandboxes"), client.get("/v1/admin/sandboxes")]
    for answer in everything:
        assert not any(form in json.dumps(answer) for form in FORMS), answer


def test_in_a_preview_that_fails(client, box):
    problem = client.problem("POST", f"/v1/sandboxes/{box}/previews", 502, "service_failed",
                             json={"command": ["sh", "-c", "echo cannot listen with $TOKEN >&2; exit 4"], "port": 9100})
    assert "cannot listen with ***" in problem["detail"]


def test_an_empty_one_is_ignored_and_one_of_a_single_character_masked(client, box):
    assert client.exec(box, ["echo", "nothing masked"])["stdout"] == "nothing masked\n"
    id = client.create(secrets=["q", ""])["id"]
    assert client.exec(id, ["echo", "aqbq"])["stdout"] == "a***b***\n"
    client.put(id, "f", b"aqbq")
    assert client.read(id, "f") == b"a*b*"
    client.delete(id)


def test_neither_in_the_cluster_nor_in_the_log(server, client, box):
    said = kubectl("get", "pods,events,secrets,configmaps", "-n", NAMESPACE, "-o", "json").stdout + server.log()
    assert not any(form in said for form in FORMS[:3])
    for path in server.dir.rglob("*"):
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                assert all(content.find(form.encode()) < 0 for form in FORMS[:3]), path
    # no process of the sandbox has it in its arguments while a file with it is written
    client.put(box, "again", SECRET)
    lines = client.exec(box, "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | sort -u")["stdout"]
    assert "***" not in lines and SECRET not in lines
