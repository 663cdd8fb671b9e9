"""Files and trees: B22, B23, B27, B52."""

import base64
import os
import socket
import unicodedata

import pytest

from server import SOAK, open_request, reset, wait_until

MIB = 1 << 20
posix = pytest.mark.needs("programs", "posix_files")


def listing(client, box, path):
    return client.tree(box, path)["items"]


def mode_of(client, box, path):
    where, _, name = path.rpartition("/")
    return next(item["mode"] for item in listing(client, box, where or ".") if item["path"] == name)


def test_write_read_stat_remove(client, box):
    created = client.put(box, "a/b/hi.txt", b"hello\n", expect=201)
    tag = created.headers["ETag"]
    assert client.read(box, "a/b/hi.txt") == b"hello\n"
    assert client.read(box, "/workspace/a/b/hi.txt") == b"hello\n"
    head = client.request("HEAD", client.file_url(box, "a/b/hi.txt"), 200)
    assert head.headers["Content-Length"] == "6" and head.headers["ETag"] == tag and head.content == b""
    client.put(box, "a/b/hi.txt", b"changed", expect=(200, 204))
    assert client.request("HEAD", client.file_url(box, "a/b/hi.txt"), 200).headers["ETag"] != tag
    client.request("DELETE", client.file_url(box, "a/b/hi.txt"), 204)
    client.problem("GET", client.file_url(box, "a/b/hi.txt"), 404, "file_not_found")
    client.problem("DELETE", client.file_url(box, "a"), 409, "not_empty")
    client.request("DELETE", client.file_url(box, "a", "&recursive=true"), 204)


def test_as_json(client, box):
    client.put(box, "text", "grüße".encode())
    headers = {"Accept": "application/json"}
    body = client.request("GET", client.file_url(box, "text"), 200, headers=headers).json()
    assert body["content"] == "grüße" and body["encoding"] == "utf-8" and body["size"] == 7
    edge = "a" * 8190 + "가나다"  # B28: characters across the boundary of a block are text all the same
    client.put(box, "edge", edge.encode())
    body = client.request("GET", client.file_url(box, "edge"), 200, headers=headers).json()
    assert (body["content"], body["encoding"]) == (edge, "utf-8")
    client.put(box, "bytes", b"\xff\x00\xfe")
    body = client.request("GET", client.file_url(box, "bytes"), 200, headers=headers).json()
    assert base64.b64decode(body["content"]) == b"\xff\x00\xfe" and body["encoding"] == "base64"


def test_modes(client, box):
    client.put(box, ".token", b"secret", more="&mode=0600")
    assert mode_of(client, box, ".token") == "0600"
    client.put(box, "plain", b"x")
    assert mode_of(client, box, "plain") == "0644"
    client.request("PATCH", client.file_url(box, "plain"), 200, json={"mode": "0755"})
    for content in (b"y", b"", b"y"):
        client.put(box, "plain", content)
        assert mode_of(client, box, "plain") == "0755"  # kept on an overwrite, with nothing too (B22)
    for bad in ("999", "8", "x", "-1", "0777777", ""):
        client.problem("PUT", client.file_url(box, "plain", f"&mode={bad}"), 400, data=b"z")
    assert client.read(box, "plain") == b"y"


@posix
def test_a_mode_is_the_files_own(client, box):
    client.put(box, "private", b"secret", more="&mode=0600")
    assert client.exec(box, "umask 077; stat -c %a private")["stdout"] == "600\n"
    client.put(box, "private", b"secret", more="&mode=0666")
    assert client.exec(box, ["stat", "-c", "%a", "private"])["stdout"] == "666\n"


@pytest.mark.parametrize("size", [0, 1, 32767, 32768, 32769, 95 << 10, 96 << 10, 97 << 10, 128 << 10, MIB, 64 * MIB] +
                         ([100 * MIB, 500 * MIB] if SOAK else []))
def test_b27_b04_any_size_is_exact(client, box, promises, size):
    data = (os.urandom(MIB) * (size // MIB + 1))[:size]
    client.put(box, "sized", data)
    if promises["programs"]:
        assert client.exec(box, ["stat", "-c", "%s", "sized"])["stdout"] == f"{size}\n"
    assert client.read(box, "sized") == data
    client.request("DELETE", client.file_url(box, "sized"), 204)


def test_ranges(client, box):
    data = bytes(range(256)) * 40
    client.put(box, "ranged", data)
    url = client.file_url(box, "ranged")

    def part(value, status=206):
        return client.request("GET", url, status, headers={"Range": value})
    assert part("bytes=0-0").content == data[:1]
    response = part("bytes=100-199")
    assert response.content == data[100:200] and response.headers["Content-Range"] == f"bytes 100-199/{len(data)}"
    assert part("bytes=10000-").content == data[10000:]
    assert part("bytes=-7").content == data[-7:]
    assert part("bytes=0-999999").content == data
    client.problem("GET", url, 416, "range_not_satisfiable", headers={"Range": "bytes=999999-"})


def test_preconditions(client, box):
    tag = client.put(box, "guarded", b"1").headers["ETag"]
    client.problem("PUT", client.file_url(box, "guarded"), 412, "precondition_failed", data=b"2", headers={"If-Match": '"other"'})
    assert client.read(box, "guarded") == b"1"
    client.put(box, "guarded", b"2", headers={"If-Match": tag})
    client.problem("PUT", client.file_url(box, "guarded"), 412, "precondition_failed", data=b"3", headers={"If-None-Match": "*"})
    client.put(box, "guarded-new", b"3", headers={"If-None-Match": "*"})
    assert client.read(box, "guarded") == b"2"


def test_patch_replaces_exactly(client, box):
    client.put(box, "edited", b"one two two three")

    def patch(expect, **body):
        return client.request("PATCH", client.file_url(box, "edited"), expect, json=body).json()
    assert patch(200, old="one", new="1", count=1)["count"] == 1
    assert client.read(box, "edited") == b"1 two two three"
    assert patch((409, 412, 422), old="two", new="2", count=1)["detail"]
    assert client.read(box, "edited") == b"1 two two three"
    assert patch(200, old="two", new="2", count=2)["count"] == 2
    assert client.read(box, "edited") == b"1 2 2 three"
    patch((404, 409, 412, 422), old="four", new="4", count=1)


def test_patch_moves(client, box):
    client.put(box, "from", b"moved", more="&mode=0640")
    client.request("PATCH", client.file_url(box, "from"), 200, json={"to": "deep/er/to"})
    client.problem("GET", client.file_url(box, "from"), 404, "file_not_found")
    assert client.read(box, "deep/er/to") == b"moved" and mode_of(client, box, "deep/er/to") == "0640"
    client.problem("PATCH", client.file_url(box, "from"), 404, "file_not_found", json={"to": "x"})
    client.problem("PATCH", client.file_url(box, "deep/er/to"), 400, json={"to": ""})


def test_a_move_onto_what_is_there(client, box):
    """Never by accident."""
    client.put(box, "m/a", b"a")
    client.put(box, "m/b", b"b")
    client.problem("PATCH", client.file_url(box, "m/a"), 409, "already_exists", json={"to": "m/b"})
    assert (client.read(box, "m/a"), client.read(box, "m/b")) == (b"a", b"b")
    client.request("PATCH", client.file_url(box, "m/a"), 200, json={"to": "m/b", "overwrite": True})
    assert client.read(box, "m/b") == b"a" and [item["path"] for item in listing(client, box, "m")] == ["b"]
    client.request("DELETE", client.file_url(box, "m", "&recursive=true"), 204)


@posix
def test_a_move_to_another_mount(client, box):
    """A file goes there as a copy that takes its place at once; a directory does not."""
    client.put(box, "m/f", b"x" * 100000, more="&mode=0640")
    client.request("PATCH", client.file_url(box, "m/f"), 200, json={"to": "/tmp/moved/f"})
    assert client.read(box, "/tmp/moved/f") == b"x" * 100000 and mode_of(client, box, "/tmp/moved/f") == "0640" and listing(client, box, "m") == []
    client.put(box, "m/f", b"again")
    client.problem("PATCH", client.file_url(box, "m/f"), 409, "already_exists", json={"to": "/tmp/moved/f"})
    problem = client.problem("PATCH", client.file_url(box, "m"), 422, "not_supported", json={"to": "/tmp/moved/m"})
    assert "file system" in problem["detail"] and client.read(box, "m/f") == b"again"
    client.exec(box, "rm -rf m /tmp/moved")


# --- B22 ----------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["half", "chunked", "four"])
def test_b22_an_upload_that_is_cut_changes_nothing(server, client, box, how):
    client.put(box, "cut/file", b"old")
    target = client.file_url(box, "cut/file")
    if how == "half":
        sock = open_request(server.port, "PUT", target, b"", {"Content-Length": 2 * MIB})
        sock.sendall(b"n" * MIB)
        reset(sock)
    elif how == "chunked":
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.sendall(f"PUT {target} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
                     .encode())
        reset(sock)
    else:
        sock = open_request(server.port, "PUT", target, b"four", {"Content-Length": 10})
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(4096):
            pass
        sock.close()
    wait_until(lambda: [item["path"] for item in listing(client, box, "cut")] == ["file"], what="no temporary file")
    assert client.read(box, "cut/file") == b"old"


# --- B23 ------------------------------------------------------------------------------------
def test_b23_missing_and_empty_differ(client, box):
    client.put(box, "e/zero", b"")
    assert client.read(box, "e/zero") == b""
    client.problem("GET", client.file_url(box, "e/absent"), 404, "file_not_found")
    client.problem("GET", client.file_url(box, "e"), 409, "is_directory")
    client.problem("GET", client.file_url(box, "e/zero/x"), 409, "not_directory")
    client.problem("PUT", client.file_url(box, "e"), 409, "is_directory", data=b"x")
    client.problem("GET", f"/v1/sandboxes/{box}/tree?path=e/absent", 404, "file_not_found")


@posix
def test_b23_links_special_files_and_permissions(client, box):
    client.exec(box, "mkdir -p m/dir m/empty; : >m/zero; echo x >m/secret; chmod 0 m/secret; ln -s nowhere m/dangling; "
                     "ln -s loop m/loop; mkfifo m/fifo; mkdir m/closed; chmod 0 m/closed; ln -s zero m/link")
    url = lambda name: client.file_url(box, name)  # noqa: E731
    client.problem("GET", url("m/dir"), 409, "is_directory")
    client.problem("GET", url("m/secret"), 403, "permission_denied")
    client.problem("GET", url("m/closed/x"), 403, "permission_denied")
    client.problem("GET", url("m/dangling"), 404, "file_not_found")
    client.problem("GET", url("m/loop"), 409, "link_loop")
    client.problem("GET", url("m/fifo"), 409, "not_regular")
    assert client.read(box, "m/link") == b""
    assert listing(client, box, "m/empty") == []
    client.problem("GET", f"/v1/sandboxes/{box}/tree?path=m/closed", 403, "permission_denied")
    for other in ("m/zero", "m/link", "m/fifo"):
        client.problem("GET", f"/v1/sandboxes/{box}/tree?path={other}", 409, "not_directory")
    types = {item["path"]: item["type"] for item in listing(client, box, "m")}
    assert types["zero"] == "file" and types["dir"] == "directory" and types["dangling"] == "symlink" and types["fifo"] == "fifo"


@posix
def test_b23_special_files_are_bounded(client, box):
    assert client.read(box, "/proc/version").startswith(b"Linux version")
    assert client.request("GET", client.file_url(box, "/dev/zero")).status_code == 409
    assert client.request("GET", client.file_url(box, "/proc/self/mem")).status_code in (400, 403, 409, 502)
    client.problem("PUT", client.file_url(box, "/proc/version"), 403, data=b"x")
    client.problem("PUT", client.file_url(box, "/etc/passwd"), 403, data=b"x")
    client.problem("PUT", client.file_url(box, "/dev/null"), 409, "not_regular", data=b"x")


@posix
def test_write_through_a_link(client, box):
    client.exec(box, "mkdir -p w; echo old >w/real; ln -s real w/alias")
    client.put(box, "w/alias", b"new")
    assert client.exec(box, "cat w/real; readlink w/alias")["stdout"] == "newreal\n"


# --- B52 --------------------------------------------------------------------------------------
NAMES = [b"-rf", b"--checkpoint-action=exec=sh x", b"a b", b" lead", b"trail ", b"a\nb", b"a\tb", b"[x]", b"*", b"q\"'$(id)`",
         b"back\\slash", b"c:d", "日本".encode(), unicodedata.normalize("NFC", "é").encode(),
         unicodedata.normalize("NFD", "é").encode(), b"\xff", b"x" * 255, b"~", b"%2e%2e", b"%41", b"100%", b"a%00b", b"a+b", b"&x=y",
         b"a?b#c", b"#f", b"..."]


def test_b52_any_name_round_trips(client, box, promises):
    for index, name in enumerate(NAMES):
        client.put(box, b"names/" + name, b"content %d" % index, expect=201)
    for index, name in enumerate(NAMES):
        assert client.read(box, b"names/" + name) == b"content %d" % index, name
    listed = {base64.b64decode(item["path"]) if item.get("name_encoding") == "base64" else item["path"].encode()
              for item in listing(client, box, "names")}
    assert listed == set(NAMES)
    paths = client.get(f"/v1/sandboxes/{box}/tree?path=names&format=paths")
    assert len(paths["items"]) == len(NAMES)
    if promises["programs"]:
        raw = client.exec(box, "cd names && find . -type f -print0 | base64 -w0")["stdout"]
        assert {name[2:] for name in base64.b64decode(raw).split(b"\0") if name} == set(NAMES)
    for name in NAMES:
        client.request("DELETE", client.file_url(box, b"names/" + name), 204)
    assert listing(client, box, "names") == []


def test_b52_headers_cannot_be_split(client, box):
    name = b"x\r\nX-Evil: 1"
    client.put(box, name, b"1")
    response = client.request("GET", client.file_url(box, name), 200)
    assert "X-Evil" not in response.headers and response.content == b"1"


def test_long_paths(client, box):
    path = "/".join(["d" * 200] * 20)
    assert len(path) > 4000
    client.put(box, path, b"deep")
    assert client.read(box, path) == b"deep"
    client.problem("PUT", client.file_url(box, "n" * 256), 400, "name_too_long", data=b"x")
    client.problem("PUT", client.file_url(box, "p/" * 3000 + "x"), (400, 414), data=b"x")
    client.request("DELETE", client.file_url(box, "d" * 200, "&recursive=true"), 204)


def test_path_parameter(client, box):
    for bad in ("", "path=", "path=a&path=b", "path=a%00b", "path=a&mod=0600", "path=a&recursive=perhaps"):
        client.problem("GET" if "recursive" not in bad else "DELETE", f"/v1/sandboxes/{box}/files?{bad}", 400)


@posix
def test_the_kernel_of_the_sandbox_resolves_paths(client, box):
    client.put(box, "x/y", b"1")
    assert client.read(box, "x/../x/./y") == b"1"
    client.exec(box, "mkdir -p z && ln -s ../x/y z/l")
    assert client.read(box, "z/l") == b"1"


# --- trees -----------------------------------------------------------------------------------------
def test_tree(client, box):
    for name in ("t/b", "t/a", "t/sub/c", "t/sub/deep/d", "t/.git/config", "t/sub/.git/objects/x"):
        client.put(box, name, name[-1] + "\n")
    client.request("PATCH", client.file_url(box, "t/a"), 200, json={"mode": "0640"})
    items = {item["path"]: item for item in listing(client, box, "t")}
    assert {"a", "b", "sub", "sub/c", "sub/deep", "sub/deep/d", ".git"} <= set(items)
    assert items["sub"]["type"] == "directory" and items["a"]["type"] == "file"
    assert items["a"]["size"] == 2 and items["a"]["mode"] == "0640" and items["a"]["mtime"].endswith("Z")
    shallow = {item["path"] for item in client.tree(box, "t", "&depth=1")["items"]}
    assert shallow == {"a", "b", "sub", ".git"}
    paths = client.get(f"/v1/sandboxes/{box}/tree?path=t&format=paths")["items"]
    assert paths == ["t/a", "t/b", "t/sub/c", "t/sub/deep/d"]  # sorted, regular files, without .git, relative to the workdir
    client.put(box, "/tmp/out/f", b"1")
    assert client.get(f"/v1/sandboxes/{box}/tree?path=/tmp/out&format=paths")["items"] == ["/tmp/out/f"]


@posix
@pytest.mark.parametrize("count", [100000 if SOAK else 5000])
def test_b52_many_entries(client, box, count):
    client.exec(box, ["python3", "-c", f"import os; os.makedirs('many', exist_ok=True); "
                                       f"[open(f'many/{{i:06}}', 'w').close() for i in range({count})]"])
    paths = client.get(f"/v1/sandboxes/{box}/tree?path=many&format=paths")["items"]
    assert paths == [f"many/{i:06}" for i in range(count)]
    client.request("DELETE", client.file_url(box, "many", "&recursive=true"), 204)


@posix
def test_git_in_the_workdir(client, box):
    script = ("set -e; git init -q repo; cd repo; git -c user.name=a -c user.email=b commit -q --allow-empty -m one; cd ..; "
              "git clone -q ./repo clone; cd clone; git status --porcelain; git log --format=%s")
    result = client.exec(box, script)
    assert result["exit_code"] == 0 and result["stdout"] == "one\n", result
    # and where the workdir itself belongs to another user, as an emptyDir does
    assert client.exec(box, "git init -q . && git status --porcelain >/dev/null && rm -rf .git")["exit_code"] == 0
