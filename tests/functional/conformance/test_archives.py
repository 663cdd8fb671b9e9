"""Archives down and up: B20."""

import io
import json
import os
import tarfile
from urllib.parse import quote

import pytest

MIB = 1 << 20
REPORT = ".podsandbox-archive.json"
posix = pytest.mark.needs("programs", "posix_files")


def url(box, path="", more=""):
    return f"/v1/sandboxes/{box}/archive?path={quote(path or '.', safe='')}{more}"


def download(client, box, path="", more="", **options):
    answer = client.request("GET", url(box, path, more), 200, **options)
    return tarfile.open(fileobj=io.BytesIO(answer.content))


def names(tar):
    return [member.name for member in tar.getmembers()]


def test_down_as_it_lies_there(client, box):
    client.put(box, "down/a/b/hi.txt", b"hello\n", more="&mode=0640")
    client.put(box, "down/.git/HEAD", b"ref: refs/heads/main\n")
    client.put(box, "down/empty", b"")
    tar = download(client, box, "down")
    assert names(tar) == [".git", ".git/HEAD", "a", "a/b", "a/b/hi.txt", "empty"]
    member = tar.getmember("a/b/hi.txt")
    assert (member.mode, member.size, tar.extractfile(member).read()) == (0o640, 6, b"hello\n")
    assert tar.getmember("a").isdir() and tar.getmember("empty").size == 0
    entry = next(e for e in client.tree(box, "down")["items"] if e["path"] == "empty")
    assert abs(float(tar.getmember("empty").pax_headers["mtime"]) - tar.getmember("empty").mtime) < 1 and entry["mtime"]
    assert names(download(client, box, "down/a/b/hi.txt")) == ["hi.txt"]  # a file alone


@pytest.mark.parametrize("form, kind, magic", [("tar", "application/x-tar", b".git"), ("tar.gz", "application/gzip", b"\x1f\x8b"),
                                               ("tar.zst", "application/zstd", b"\x28\xb5\x2f\xfd")])
def test_formats(client, box, form, kind, magic):
    client.put(box, "form/.git/x", b"x" * 70000)
    for answer in (client.request("GET", url(box, "form", f"&format={form}"), 200),
                   client.request("GET", url(box, "form"), 200, headers={"Accept": kind})):
        assert answer.headers["Content-Type"] == kind and answer.content[:512].find(magic) >= 0
        assert f'.{form}"' in answer.headers["Content-Disposition"]
    if form != "tar.zst":  # the tarfile of Python does not know it
        assert names(tarfile.open(fileobj=io.BytesIO(answer.content))) == [".git", ".git/x"]


def test_what_cannot_be_packed(client, box):
    client.problem("GET", url(box, "not-there"), 404, "file_not_found")
    client.problem("GET", url(box, more="&format=zip"), 400, "invalid_field")
    client.problem("GET", url(box, more="&nonsense=1"), 400)


def test_secrets_are_masked_and_told(client):
    box = client.create(secrets=["tok-12345678"])["id"]
    try:
        client.put(box, "m/key.txt", b"a tok-12345678 b")
        client.put(box, "m/tok-12345678/x", b"." * 40000 + b"tok-12345678" + b"." * 40000)
        tar = download(client, box, "m")
        assert names(tar) == ["key.txt", "*" * 12, "*" * 12 + "/x", REPORT]
        assert tar.extractfile("key.txt").read() == b"a ************ b"
        assert tar.extractfile("*" * 12 + "/x").read() == b"." * 40000 + b"*" * 12 + b"." * 40000
        assert json.load(tar.extractfile(REPORT)) == {"scrubbed": 4, "not_as_they_are": 0, "entries": []}
    finally:
        client.delete(box, expect=(202, 204))


@posix
def test_links_sparse_and_special_files(client, box):
    client.exec(box, "rm -rf k; mkdir -p k/d; cd k; echo one > one; ln one two; ln -s ../../etc/passwd out; ln -s one soft;"
                     "mkfifo pipe; truncate -s 3T huge; truncate -s 7E huger; printf end | dd of=huge bs=1 seek=2T conv=notrunc 2>/dev/null;"
                     "truncate -s 5M hole; chmod 0111 d; touch -d @1000000000.123456789 one; touch -h -d @7 out")
    answer = client.request("GET", url(box, "k"), 200)
    assert len(answer.content) < MIB
    tar = tarfile.open(fileobj=io.BytesIO(answer.content))
    assert tar.getmember("two").islnk() and tar.getmember("two").linkname == "one"
    assert tar.getmember("out").linkname == "../../etc/passwd" and tar.getmember("out").issym() and tar.getmember("out").mtime == 7
    assert tar.getmember("huge").size == 3 << 40 and tar.getmember("hole").size == 5 * MIB
    assert tar.getmember("one").pax_headers["mtime"] == "1000000000.123456789"
    content = tar.extractfile("huge")
    content.seek(2 << 40)
    assert content.read(5) == b"end\0\0" and tar.extractfile("hole").read() == bytes(5 * MIB)
    report = json.load(tar.extractfile(REPORT))
    assert {"path": "pipe", "reason": "not_regular"} in report["entries"]
    huger = client.exec(box, "stat -c %s k/huger")["stdout"].strip()  # where the file system has room for the name of it
    assert {"path": "huger", "reason": "too_large"} in report["entries"] or huger in ("", "0")
    client.exec(box, "chmod 755 k/d; rm -rf k")


@posix
def test_what_cannot_be_read_is_told(client, box):
    client.exec(box, "mkdir -p u/shut; echo a > u/a; echo b > u/b; ln u/b u/c; echo d > u/shut/d; chmod 0 u/b u/shut")
    if client.exec(box, "cat u/b")["exit_code"] == 0:
        pytest.skip("the sandbox's user may read everything")
    tar = download(client, box, "u")
    assert names(tar) == ["a", "shut", REPORT]
    report = json.load(tar.extractfile(REPORT))
    assert report["not_as_they_are"] == 3
    assert {(e["path"], e["reason"]) for e in report["entries"]} == {(n, "permission_denied") for n in ("b", "c", "shut")}
    client.exec(box, "chmod 755 u/shut; rm -rf u")


@posix
def test_files_that_change_keep_the_archive_true(client, box):
    """Files that grow and shrink all the time: each archive is whole, with what was announced."""
    client.exec(box, "mkdir -p c")
    job = client.post(f"/v1/sandboxes/{box}/execs", {"cmd": ["sh", "-c",
                      "while :; do for i in 1 2 3 4 5 6 7 8; do head -c 300000 /dev/zero > c/$i; : > c/$i; done; done"],
                      "detach": True}, expect=(201, 202))
    try:
        for _ in range(30):
            tar = download(client, box, "c")
            for member in tar.getmembers():
                assert len(tar.extractfile(member).read()) == member.size
    finally:
        client.request("DELETE", f"/v1/sandboxes/{box}/execs/{job['id']}", (200, 202, 204))


@posix
def test_names_of_all_sorts(client, box):
    client.exec(box, ["python3", "-c", "import os; os.mkdir('n'); "
                      "[open(b'n/' + n, 'w').close() for n in (b'\\xff\\xfe', 'grüße'.encode(), b'a\\nb', b'x' * 255, b'-rf', b' ')]; "
                      "os.makedirs('n/' + '/'.join(['d' * 200] * 10))"]) if client.exec(box, ["python3", "-c", ""])["exit_code"] == 0 else \
        client.exec(box, "mkdir n; touch n/' ' n/-rf")
    wanted = {os.fsencode(entry["path"]) for entry in client.tree(box, "n")["items"] if "name_encoding" not in entry}
    found = {os.fsencode(name) for name in names(download(client, box, "n"))}
    assert wanted <= found and len(found) == len(client.tree(box, "n")["items"])
    client.exec(box, "rm -rf n")
