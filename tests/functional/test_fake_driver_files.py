"""Files and previews of the fake driver."""

import base64
import json
import os
import threading

import pytest

from fake_driver import FakeServer, calls, reply
from server import SOAK, open_request, reset, wait_until

MIB = 1 << 20


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    server = FakeServer(tmp_path_factory.mktemp("fake"), ("--preview-domain", "previews.example")).start()
    yield server
    server.stop()


@pytest.fixture
def client(cloud):
    client = cloud.client()
    for path in ("replies", "ids", "files", "calls"):
        client.request("DELETE", f"/v1/fake/{path}", 204)
    yield client
    assert cloud.process.poll() is None


@pytest.fixture
def box(client):
    client.create("box")
    client.request("DELETE", "/v1/fake/calls", 204)
    yield "box"
    client.delete("box")


def etag(client, box, path):
    return client.request("HEAD", client.file_url(box, path), 200).headers["ETag"]


def patch(client, box, path, expect=200, **body):
    return client.request("PATCH", client.file_url(box, path), expect, json=body)


def paths(client, box, path=".", more=""):
    return [item["path"] for item in client.tree(box, path, more)["items"]]


# --- contents -------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [0, 1, 32759, 32760, 32768, 65536, 20 * MIB + 1])
def test_any_size_is_exact(client, box, size):
    data = os.urandom(size)
    assert client.put(box, "data", data).status_code == 201
    assert client.read(box, "data") == data
    assert client.request("HEAD", client.file_url(box, "data"), 200).headers["Content-Length"] == str(size)
    if size > 100:
        headers = {"Range": f"bytes=50-{size - 2}"}
        assert client.request("GET", client.file_url(box, "data"), 206, headers=headers).content == data[50:-1]


def test_several_at_once(client, box):
    data = [os.urandom(3 * MIB + i) for i in range(6)]
    failures = []

    def go(i):
        try:
            for _ in range(3):
                client.put(box, f"d{i}", data[i])
                assert client.read(box, f"d{i}") == data[i]
        except BaseException as failure:
            failures.append(failure)
    threads = [threading.Thread(target=go, args=[i]) for i in range(len(data))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_json_contents_are_masked(client):
    client.create("masked", secrets=["tok3n-tok3n"])
    client.put("masked", "cfg", b"key=tok3n-tok3n\n")
    body = client.request("GET", client.file_url("masked", "cfg"), 200, headers={"Accept": "application/json"}).json()
    assert (body["content"], body["encoding"], body["scrubbed"]) == ("key=***\n", "utf-8", 1)
    patch(client, "masked", "cfg", old="key", new="KEY")
    assert client.read("masked", "cfg") == b"KEY=***********\n"
    client.delete("masked")


@pytest.mark.parametrize("name", ["with space", "grüße.txt", 'quo"te', "per%cent", "line\nbreak", "tab\there", "-dash", "a\x01b"])
def test_names_are_kept(client, box, name):
    client.put(box, f"dir/{name}", b"x")
    assert client.read(box, f"dir/{name}") == b"x"
    assert paths(client, box, "dir") == [name]


def test_paths_are_resolved_from_the_workdir(client):
    client.create("elsewhere", workdir="/srv/app")
    client.put("elsewhere", "./x//../y.txt", b"1")
    assert client.read("elsewhere", "/srv/app/y.txt") == b"1"
    assert client.read("elsewhere", "/srv/../srv/app/./y.txt") == b"1"
    assert client.tree("elsewhere", "/", "&format=paths&depth=0")["items"] == ["/srv/app/y.txt"]
    client.delete("elsewhere")


def test_modes_and_tags(client, box):
    client.put(box, "m", b"1", more="&mode=0600")
    assert client.tree(box)["items"][0]["mode"] == "0600"
    first = etag(client, box, "m")
    client.put(box, "m", b"2")
    assert client.tree(box)["items"][0]["mode"] == "0600"  # kept
    second = etag(client, box, "m")
    assert first != second
    client.problem("PUT", client.file_url(box, "m"), 412, "precondition_failed", data=b"3", headers={"If-Match": first})
    client.put(box, "m", b"3", headers={"If-Match": second})
    client.problem("PUT", client.file_url(box, "m"), 412, "precondition_failed", data=b"4", headers={"If-None-Match": "*"})
    client.put(box, "n", b"4", headers={"If-None-Match": "*"})
    patch(client, box, "n", mode="0755")
    assert {item["path"]: item["mode"] for item in client.tree(box)["items"]} == {"m": "0600", "n": "0755"}
    assert client.read(box, "m") == b"3"


# --- names ----------------------------------------------------------------------------------------
@pytest.fixture
def tree(client, box):
    for path in ("b.txt", "b/two", "b/one/deep", "b-c", ".git/config", "b/.git/HEAD", ".gitignore", "a"):
        client.put(box, path, path.encode())
    return box


def test_a_listing_is_as_everywhere(client, tree):
    assert client.tree(tree, ".", "&format=paths")["items"] == [".gitignore", "a", "b-c", "b.txt", "b/one/deep", "b/two"]
    assert paths(client, tree) == [".git", ".git/config", ".gitignore", "a", "b", "b/.git", "b/.git/HEAD", "b/one", "b/one/deep",
                                   "b/two", "b-c", "b.txt"]
    assert paths(client, tree, "b", "&depth=1") == [".git", "one", "two"]
    kinds = {item["path"]: (item["type"], item["size"]) for item in client.tree(tree, "b")["items"]}
    assert kinds["one"][0].startswith("d") and kinds["one/deep"] == ("file", len("b/one/deep")), kinds
    client.problem("GET", f"/v1/sandboxes/{tree}/tree?path=nowhere", 404, "file_not_found")
    client.problem("GET", f"/v1/sandboxes/{tree}/tree?path=a", 409, "not_directory")


def test_removing(client, tree):
    client.problem("DELETE", client.file_url(tree, "b"), 409, "not_empty")
    client.request("DELETE", client.file_url(tree, "b", "&recursive=true"), 204)
    client.request("DELETE", client.file_url(tree, "a"), 204)
    client.problem("DELETE", client.file_url(tree, "a"), 404, "file_not_found")
    assert client.tree(tree, ".", "&format=paths")["items"] == [".gitignore", "b-c", "b.txt"]


def test_moving(client, tree):
    patch(client, tree, "b", to="new/place")
    assert client.read(tree, "new/place/one/deep") == b"b/one/deep"
    client.problem("GET", client.file_url(tree, "b/two"), 404, "file_not_found")
    client.problem("PATCH", client.file_url(tree, "a"), 409, "already_exists", json={"to": "b.txt"})
    patch(client, tree, "a", to="b.txt", overwrite=True)
    assert client.read(tree, "b.txt") == b"a"
    client.problem("PATCH", client.file_url(tree, "new"), 400, "invalid_path", json={"to": "new/place/in/itself"})
    client.problem("PATCH", client.file_url(tree, "nowhere"), 404, "file_not_found", json={"to": "x"})
    assert client.tree(tree, ".", "&format=paths")["items"] == [
        ".gitignore", "b-c", "b.txt", "new/place/one/deep", "new/place/two"]


def test_replacing(client, box):
    client.put(box, "f", b"one two two three")
    assert patch(client, box, "f", old="two", new="2", count=2).json()["count"] == 2
    assert client.read(box, "f") == b"one 2 2 three"
    problem = client.problem("PATCH", client.file_url(box, "f"), 409, "conflict", json={"old": "2", "new": "x", "count": 1})
    assert "2 times" in problem["detail"]
    client.problem("PATCH", client.file_url(box, "f"), 409, "conflict", json={"old": "absent", "new": "x"})
    assert client.read(box, "f") == b"one 2 2 three"


def test_what_does_not_fit_is_refused(client, box):
    client.put(box, "dir/file", b"x")
    problem = client.problem("GET", client.file_url(box, "dir"), 409, "is_directory")
    assert "archive" not in problem["remediation"], problem  # there is no such route
    client.problem("PUT", client.file_url(box, "dir"), 409, "is_directory", data=b"y")
    client.problem("PUT", client.file_url(box, "dir/file/below"), 409, "not_directory", data=b"y")
    client.problem("GET", client.file_url(box, "dir/file/below"), 409, "not_directory")
    client.problem("GET", client.file_url(box, "dir/other"), 404, "file_not_found")
    client.problem("PUT", client.file_url(box, "n" * 256), 400, "name_too_long", data=b"y")
    client.problem("DELETE", client.file_url(box, "/", "&recursive=true"), 403, "permission_denied")
    assert client.tree(box, ".", "&format=paths")["items"] == ["dir/file"]


def test_an_upload_that_is_cut_changes_nothing(client, cloud, box):
    client.put(box, "kept", b"old")
    for _ in range(20):
        sock = open_request(cloud.port, "PUT", client.file_url(box, "kept"), b"x" * 100000, {"Content-Length": 200000})
        reset(sock)
    wait_until(lambda: client.read(box, "kept") == b"old", what="the old contents")
    assert [call["content"] for call in calls(client, box, "write")] == ["old"]


def test_the_space_is_bounded_and_comes_back(client, box):
    if not SOAK:
        pytest.skip("takes 256 MiB")
    client.create("second")
    client.put(box, "big", bytes(200 * MIB))
    problem = client.problem("PUT", client.file_url("second", "big"), 507, "no_space", data=bytes(100 * MIB))
    assert "256 MiB" in problem["detail"]
    client.problem("GET", client.file_url("second", "big"), 404, "file_not_found")
    client.request("DELETE", client.file_url(box, "big"), 204)
    client.put("second", "big", bytes(100 * MIB))
    client.delete("second")
    client.put(box, "big", bytes(200 * MIB))


# --- what is remembered -------------------------------------------------------------------------
def test_files_that_were_put_are_remembered(client, box):
    client.put(box, "a.txt", "grüße\n".encode(), more="&mode=0640")
    client.put(box, "/etc/raw", b"\xff\x00")
    client.put(box, "a.txt", b"")
    client.read(box, "a.txt")
    client.tree(box, ".")
    patch(client, box, "a.txt", to="b.txt")
    patch(client, box, "b.txt", mode="0600")
    patch(client, box, "/etc/raw", old="x", new="y", expect=409)
    client.request("DELETE", client.file_url(box, "b.txt"), 204)
    text = {"content_encoding": "utf-8"}
    assert calls(client, box) == [
        {"type": "write", "path": "/workspace/a.txt", "content": "grüße\n", **text, "content_bytes": 8,
         "mode": "0640", "created": True},
        {"type": "write", "path": "/etc/raw", "content": base64.b64encode(b"\xff\x00").decode(),
         "content_encoding": "base64", "content_bytes": 2, "mode": "0644", "created": True},
        {"type": "write", "path": "/workspace/a.txt", "content": "", **text, "content_bytes": 0,
         "mode": "0640", "created": False},
        {"type": "read", "path": "/workspace/a.txt"},
        {"type": "list", "path": "/workspace"},
        {"type": "move", "path": "/workspace/a.txt", "to": "/workspace/b.txt"},
        {"type": "mode", "path": "/workspace/b.txt", "mode": "0600"},
        {"type": "remove_file", "path": "/workspace/b.txt"}]


def test_of_a_large_file_the_beginning_is_remembered(client, box):
    data = b"ab\xc3\xa4" * 100000
    client.put(box, "large", data)
    call, = calls(client, box)
    assert call["content_bytes"] == len(data) and data.startswith(call["content"].encode())
    assert 256 * 1024 - 4 < len(call["content"].encode()) <= 256 * 1024


# --- prepared files ---------------------------------------------------------------------------------
def prepare(client, files, sandbox=None, expect=200):
    body = {"files": files, **({"sandbox": sandbox} if sandbox else {})}
    return client.request("PUT", "/v1/fake/files", expect, json=body).json()


def test_prepared_files_are_there_from_the_start(client):
    prepare(client, [{"path": "src/main.py", "content": "print(1)\n"},
                     {"path": "/etc/key", "content": base64.b64encode(b"\xff").decode(), "encoding": "base64", "mode": "0600"}])
    prepare(client, [{"path": "only", "content": "for p2"}], "p2")
    assert len(client.get("/v1/fake/files")["items"]) == 2
    for id in ("p1", "p2", "p3"):
        client.create(id)
    assert client.read("p1", "src/main.py") == b"print(1)\n" and client.read("p1", "/etc/key") == b"\xff"
    assert client.tree("p1", "/etc")["items"][0]["mode"] == "0600"
    assert client.tree("p2", ".", "&format=paths")["items"] == ["only"]
    assert client.tree("p3", ".", "&format=paths")["items"] == []
    assert client.get("/v1/fake/files") == {"items": []}
    for id in ("p1", "p2", "p3"):
        client.delete(id)


@pytest.mark.parametrize("files,name", [
    ([{"path": "x"}], "files[0].content"),
    ([{"path": "", "content": ""}], "files[0].path"),
    ([{"path": "x", "content": "!", "encoding": "base64"}], "files[0].content"),
    ([{"path": "x", "content": "", "mode": "999"}], "files[0].mode"),
    ([{"path": "x", "content": "", "mode": "4755"}], "files[0].mode"),
    ([{"path": "x", "content": "", "owner": "me"}], "files[0].owner"),
    ([3], "files[0]"),
    ({}, "files")])
def test_bad_files_are_refused(client, files, name):
    problem = client.problem("PUT", "/v1/fake/files", 400, "invalid_field", json={"files": files})
    assert f"'{name}'" in problem["detail"]
    assert client.get("/v1/fake/files") == {"items": []}


def test_files_that_cannot_be_together_are_refused(client):
    problem = client.problem("PUT", "/v1/fake/files", 409, "not_directory", json={
        "files": [{"path": "a", "content": ""}, {"path": "a/b", "content": ""}]})
    assert "/workspace/a" in problem["detail"]


# --- previews ---------------------------------------------------------------------------------------
def test_a_preview_has_its_names_and_is_remembered(client, box):
    preview = client.post(f"/v1/sandboxes/{box}/previews", {"command": ["npm", "run", "dev"], "port": 5173, "env": {"HOST": "0"}}, 201)
    assert {name: preview[name] for name in ("host", "port", "state", "exit_code")} == {
        "host": "box.previews.example", "port": 5173, "state": "ready", "exit_code": None}
    assert preview["url"].startswith("http://box.previews.example")
    client.post(f"/v1/sandboxes/{box}/previews", {"port": 8000, "subdomain": "api-of-box"}, 201)
    assert [call for call in calls(client, box) if call["type"] == "preview"] == [
        {"type": "preview", "command": ["npm", "run", "dev"], "port": 5173, "subdomain": "box", "env": {"HOST": "0"}},
        {"type": "preview", "command": [], "port": 8000, "subdomain": "api-of-box", "env": {}}]
    assert [call["cmd"] for call in calls(client, box, "exec")] == [["npm", "run", "dev"]]
    assert [item["state"] for item in client.get(f"/v1/sandboxes/{box}/previews")["items"]] == ["ready", "ready"]
    client.request("DELETE", f"/v1/sandboxes/{box}/previews/5173", 204)
    record = client.exec_wait(box, preview["exec"])
    assert record["signal"] == "TERM"
    assert calls(client, box)[-1] == {"type": "preview_removed", "port": 5173}
    client.problem("DELETE", f"/v1/sandboxes/{box}/previews/5173", 404)
    assert len(calls(client, box, "preview_removed")) == 1


def test_nobody_serves_a_preview(tmp_path):
    """Through the proxy, which says why."""
    server = FakeServer(tmp_path, ("--preview-mode", "proxy")).start()
    try:
        client = server.client()
        client.create("shown")
        preview = client.post("/v1/sandboxes/shown/previews", {"command": ["serve"], "port": 80}, 201)
        assert preview["state"] == "ready" and preview["service"] is None
        problem = client.problem("GET", "/", 422, "not_supported", headers={"Host": f"{preview['host']}:{server.port}"})
        assert "fake driver" in problem["detail"]
    finally:
        server.stop()


def test_a_preview_can_be_replaced(client, box):
    body = {"command": ["serve"], "port": 80}
    first = client.post(f"/v1/sandboxes/{box}/previews", body, 201)
    second = client.post(f"/v1/sandboxes/{box}/previews", body, 201)
    assert first["exec"] != second["exec"] and second["state"] == "ready"
    assert client.exec_wait(box, first["exec"])["state"] == "exited"


def test_a_preview_can_fail(client, box):
    reply(client, {"prefix": ["serve"]}, {"exit_code": 1, "stderr": "port in use\n"})
    problem = client.problem("POST", f"/v1/sandboxes/{box}/previews", 502, "service_failed", json={"command": ["serve"], "port": 80})
    assert "port in use" in problem["detail"]


def test_calls_are_json_lines_of_text(client, box):
    """What is not text does not break the listing."""
    client.put(box, "bin", bytes(range(256)))
    client.exec(box, ["printf", "\x7f\x1b[0m"], stdin="\x01\x02")
    assert json.loads(client.request("GET", "/v1/fake/calls", 200).content)["items"]
