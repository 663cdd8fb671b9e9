"""Archives down and up: B20."""

import io
import json
import os
import tarfile
from urllib.parse import quote

import pytest

from server import open_request, reset, wait_until

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


# --- up ----------------------------------------------------------------------------------------------------

def entry(name, data=b"", kind=tarfile.REGTYPE, link="", mode=0o644, mtime=1234567890, size=None):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.mtime = kind, link, mode, mtime
    info.size = len(data) if size is None else size
    return info, data


def archive(*entries, form="w"):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=form, format=tarfile.PAX_FORMAT) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def directory(name, mode=0o755):
    return entry(name, kind=tarfile.DIRTYPE, mode=mode)


def upload(client, box, data, path="up", expect=200, **options):
    return client.request("PUT", url(box, path), expect, data=data, **options).json()


def refused(client, box, data, *words, path="up", status=400, code="invalid_archive"):
    problem = client.problem("PUT", url(box, path), status, code, data=data)
    for word in words:
        assert word in problem["detail"], problem
    return problem["written"]


def clean(client, box, *paths):
    for path in paths or ("up",):
        client.request("DELETE", client.file_url(box, path, "&recursive=true"), (204, 404))


@pytest.mark.parametrize("form", ["w", "w:gz"])
def test_up(client, box, form):
    data = archive(directory("./"), directory("a", 0o750), entry("a/b/run.sh", b"#!/bin/sh\n", mode=0o755), entry("e"), form=form)
    assert upload(client, box, data) == {"files": 2, "directories": 1, "links": 0, "bytes": 10, "skipped": [], "skipped_total": 0}
    assert client.read(box, "up/a/b/run.sh") == b"#!/bin/sh\n"
    modes = {item["path"]: item["mode"] for item in client.tree(box, "up")["items"]}
    modes["a/b"] = modes["a/b"][1:]  # no entry of its own: it may inherit the set-group-ID bit
    assert modes == {"a": "0750", "a/b": "755", "a/b/run.sh": "0755", "e": "0644"}
    clean(client, box)


def test_down_and_up_again_is_the_same(client, box):
    for name, data in (("x/1", os.urandom(100000)), ("x/.git/2", b""), ("x/y/z/3", b"q" * 65536), ("x/grüße", b"!")):
        client.put(box, name, data)
    for form in ("tar", "tar.gz", "tar.zst"):
        packed = client.request("GET", url(box, "x", f"&format={form}"), 200).content
        made = upload(client, box, packed, path="copy/of/x")
        assert (made["files"], made["directories"], made["bytes"]) == (4, 3, 165537)
        for name in ("1", ".git/2", "y/z/3", "grüße"):
            assert client.read(box, f"copy/of/x/{name}") == client.read(box, f"x/{name}")
        clean(client, box, "copy")


def test_a_later_entry_of_a_name_wins(client, box):
    assert upload(client, box, archive(entry("n", b"first"), entry("n", b"second")))["files"] == 2
    assert client.read(box, "up/n") == b"second"
    clean(client, box)


@pytest.mark.parametrize("name", ["../x", "/abs/x", "a/../../x", "a/..", "/", "..", "n" * 256, "/".join("d" * 129)])
def test_b20_a_path_that_leads_out_is_refused(client, box, name):
    written = refused(client, box, archive(entry("before", b"1"), entry(name, b"2"), entry("after", b"3")), "entry '")
    assert written == {"files": 1, "directories": 0, "links": 0, "bytes": 1, "skipped": [], "skipped_total": 0}
    assert [item["path"] for item in client.tree(box, "up")["items"]] == ["before"]
    clean(client, box)


def test_b20_limits(client, box):
    deep = archive(entry("/".join(["d"] * 10000), b"x"))
    refused(client, box, deep)
    huge = tarfile.TarInfo("huge")
    huge.size = 1 << 40
    refused(client, box, huge.tobuf(tarfile.PAX_FORMAT) + bytes(20000), "huge", status=413, code="too_large")
    long = tarfile.TarInfo("x")
    long.pax_headers = {"comment": "c" * (3 * MIB)}
    refused(client, box, long.tobuf(tarfile.PAX_FORMAT) + bytes(10240), "header")
    names = entry("././@LongLink", b"n" * 500, kind=tarfile.GNUTYPE_LONGNAME)  # headers that nothing follows
    refused(client, box, (names[0].tobuf(tarfile.GNU_FORMAT) + names[1].ljust(512, b"\0")) * 3000, "header")
    clean(client, box)


def test_b20_what_is_no_archive_is_refused(client, box):
    for data in (b"", b"no archive", os.urandom(5000), b"\x1f\x8b" + os.urandom(100), b"PK\3\4" + bytes(100)):
        refused(client, box, data)
    client.problem("PUT", url(box), 415, "unsupported_media_type", data=b"PK", headers={"Content-Type": "application/zip"})
    whole = archive(entry("one", b"1" * 5000), entry("two", b"2" * 5000))
    written = refused(client, box, whole[:8000], "two")
    assert written["files"] == 1 and [item["path"] for item in client.tree(box, "up")["items"]] == ["one"]
    packed = archive(entry("one", b"".join(b"%d\n" % number for number in range(50000))), form="w:gz")
    refused(client, box, packed[:-9000])
    refused(client, box, packed[:20000] + b"\xff" * 5000 + packed[25000:])
    clean(client, box)


def test_trailing_garbage_and_the_report_count_for_nothing(client, box):
    made = upload(client, box, archive(entry("a", b"1"), entry(REPORT, b"{}")) + b"garbage" * 5000)
    assert made["files"] == 1 and made["skipped"] == [{"path": REPORT, "reason": "report"}]
    clean(client, box)


def test_onto_what_is_there(client, box):
    client.put(box, "up/dir/file", b"old")
    refused(client, box, archive(entry("dir", b"x")), "dir", status=409, code="is_directory")
    refused(client, box, archive(directory("dir/file")), "dir/file", status=409, code="not_directory")
    assert client.read(box, "up/dir/file") == b"old"
    upload(client, box, archive(entry("dir/file", b"new", mode=0o600)))
    assert client.read(box, "up/dir/file") == b"new" and mode_in(client, box, "dir/file") == "0600"
    clean(client, box)


def mode_in(client, box, name, root="up"):
    return next(item["mode"] for item in client.tree(box, root)["items"] if item["path"] == name)


@posix
def test_up_keeps_times_links_and_holes(client, box):
    sparse = client.request("GET", url(box, "s"), 200).content if not client.exec(
        box, "mkdir -p s; truncate -s 100M s/hole; printf x | dd of=s/hole bs=1 seek=50M conv=notrunc 2>/dev/null; ln s/hole s/same; "
             "ln -s /nowhere s/dangling; mkdir s/old; touch -d @7.5 s/old s/hole")["exit_code"] else pytest.fail("no files")
    assert upload(client, box, sparse)["links"] == 2
    shown = client.exec(box, "cd up; stat -c '%s %h %.2Y' hole; stat -c %.2Y old; readlink dangling; cmp hole ../s/hole && echo same; "
                             "test $(stat -c %b hole) -lt 20000 && echo sparse; stat -c %u . hole | sort -u | wc -l")["stdout"]
    assert shown == "104857600 2 7.50\n7.50\n/nowhere\nsame\nsparse\n1\n"
    clean(client, box, "s", "up")


@posix
def test_special_files_are_left_out_and_bits_stripped(client, box):
    made = upload(client, box, archive(entry("dev", kind=tarfile.CHRTYPE), entry("blk", kind=tarfile.BLKTYPE), entry("pipe", kind=tarfile.FIFOTYPE),
                                       entry("suid", b"x", mode=0o4755), directory("sticky", 0o3777)))
    assert [item["path"] for item in made["skipped"]] == ["dev", "blk", "pipe"] and made["skipped_total"] == 3
    assert mode_in(client, box, "suid") == "0755" and mode_in(client, box, "sticky") == "0777"
    clean(client, box)


LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE


@posix
@pytest.mark.parametrize("entries", [
    [entry("l", kind=LINK, link="/workspace/outside"), entry("l/x", b"!")],
    [entry("l", kind=LINK, link="../outside"), entry("l/x", b"!")],
    [entry("l", kind=LINK, link="../outside"), directory("l/x")],
    [entry("l", kind=LINK, link="../outside"), directory("l")],
    [entry("l", kind=LINK, link="../outside"), entry("l/x", kind=LINK, link="y")],
    [entry("a", kind=LINK, link="."), entry("a/b", kind=LINK, link=".."), entry("a/b/x", b"!")],
    [entry("h", kind=HARD, link="../outside/secret"), entry("h", b"!")],
    [entry("h", kind=HARD, link="/workspace/outside/secret"), entry("h", b"!")],
    [entry("l", kind=LINK, link="../outside"), entry("h", kind=HARD, link="l/secret"), entry("h", b"!")],
    [directory("d"), entry("d/f", b"1"), entry("d", kind=LINK, link="../outside"), entry("d/secret", b"!")],
    [entry("h", kind=HARD, link="not-there")],
])
def test_b20_nothing_is_written_through_a_link(client, box, entries):
    client.put(box, "outside/secret", b"secret")
    client.put(box, "up2/keep", b"")  # the prefix twin of the directory
    response = client.request("PUT", url(box, "up"), (400, 409), data=archive(*entries))
    assert response.json()["code"] in ("invalid_archive", "is_directory", "not_directory"), response.text
    assert client.read(box, "outside/secret") == b"secret" and [i["path"] for i in client.tree(box, "outside")["items"]] == ["secret"]
    assert [i["path"] for i in client.tree(box, "up2")["items"]] == ["keep"]
    clean(client, box, "up", "outside", "up2")


@posix
def test_b20_a_name_that_is_a_link_is_replaced(client, box):
    """Those of the archive, and those that the sandbox has laid out."""
    client.put(box, "outside/secret", b"secret")
    client.exec(box, "mkdir -p up; ln -s ../outside/secret up/laid; ln -s ../outside up/way; ln outside/secret up/hard; ln -s nowhere up/dangling")
    upload(client, box, archive(entry("laid", b"1"), entry("hard", b"2"), entry("dangling", b"3"), entry("l", kind=LINK, link="../outside/secret"),
                                entry("l", b"4"), entry("dot", kind=LINK, link=".")))
    assert client.read(box, "outside/secret") == b"secret"
    assert client.exec(box, "cd up; cat laid hard dangling l; test ! -e ../nowhere; test ! -L laid && readlink dot")["stdout"] == "1234.\n"
    refused(client, box, archive(entry("way/x", b"!")), "way/x")
    assert client.exec(box, "ls outside")["stdout"] == "secret\n"
    clean(client, box, "up", "outside")


@posix
def test_no_temporary_file_is_left(server, client, box):
    """A client that leaves in the middle of a file, and one whose archive ends there."""
    data = archive(entry("whole", b"w" * MIB), entry("part", os.urandom(4 * MIB)))
    sock = open_request(server.port, "PUT", url(box, "up"), data[:3 * MIB], {"Content-Length": len(data), "Content-Type": "application/x-tar"})
    wait_until(lambda: "part" in client.exec(box, "test -e up/whole && ls -a up | grep -q podsandbox- && echo part")["stdout"])
    reset(sock)
    wait_until(lambda: client.exec(box, "ls -A up")["stdout"] == "whole\n")
    refused(client, box, data[:3 * MIB])
    assert client.exec(box, "ls -A up")["stdout"] == "whole\n"
    clean(client, box)


@posix
def test_a_full_disk_is_told(client, box):
    """What lies there of it before, and that it is no fault of the archive."""
    size = client.exec(box, "df -B1 --output=avail . | tail -1")
    if size["exit_code"] or int(size["stdout"]) > 2 << 30:
        pytest.skip("no small file system here")
    data = entry("fits", b"x")
    fill = tarfile.TarInfo("fills")
    fill.size = int(size["stdout"]) + MIB

    def stream():
        yield data[0].tobuf(tarfile.PAX_FORMAT) + data[1].ljust(512, b"\0") + fill.tobuf(tarfile.PAX_FORMAT)
        block = bytes(range(256)) * 4096
        for _ in range(fill.size // len(block) + 1):
            yield block
    problem = client.problem("PUT", url(box, "up"), 507, "no_space", data=stream())
    assert problem["written"]["files"] == 1 and client.exec(box, "ls -A up")["stdout"] == "fits\n"
    clean(client, box)
