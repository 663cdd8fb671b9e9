"""Files: bytes, names, modes, and everything that is not a regular file."""

import hashlib
import os
import random
import signal
import stat
import subprocess

import pytest

from conftest import wait_for


def left_over(work):
    return [name for name in os.listdir(work) if name.startswith(".podsandbox")]


# --- write and read


@pytest.mark.parametrize("size", [0, 1, 32759, 32760, 65536, 131072, 20_000_001])
def test_round_trip(client, size):
    content = os.urandom(size)
    result = client.write("dir/sub/file", content)
    assert result["created"] == 1 and result["size"] == size and result["mode"] == 0o644
    assert hashlib.sha256((client.work / "dir/sub/file").read_bytes()).digest() == hashlib.sha256(content).digest()
    fields, back = client.read("dir/sub/file")
    assert hashlib.sha256(back).digest() == hashlib.sha256(content).digest()
    assert fields["size"] == size and fields["type"] == "f" and fields["etag"] == result["etag"]
    assert left_over(client.work / "dir/sub") == []


def test_range(client):
    content = os.urandom(100_000)
    client.write("f", content)
    for offset, length in ((0, 10), (5, 70000), (99_999, 10), (100_000, 1), (200_000, 5), (50, 0)):
        _, back = client.read("f", ("offset", offset), ("length", length))
        assert back == content[offset : offset + length]
    assert client.read("f", ("offset", 99_000))[1] == content[99_000:]
    assert client.read("f", ("offset", 2**63))[0]["error"] == "invalid_field"


def test_mode(client):
    old = os.umask(0)
    try:
        for mode in (0o600, 0o777, 0o4755, 0o000, 0o1644):
            path = client.work / f"m{mode:o}"
            assert client.write(str(path), b"x", ("mode", mode))["mode"] == mode
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(old)
    (client.work / "kept").write_text("x")
    (client.work / "kept").chmod(0o751)
    assert client.write("kept", b"new")["created"] == 0
    assert stat.S_IMODE((client.work / "kept").stat().st_mode) == 0o751
    assert client.write("kept", b"new", ("mode", 0o10000))["error"] == "invalid_field"


def test_empty_overwrite_keeps_the_mode(client):
    (client.work / "f").write_text("content")
    (client.work / "f").chmod(0o600)
    assert client.write("f", b"")["created"] == 0
    assert (client.work / "f").read_bytes() == b"" and stat.S_IMODE((client.work / "f").stat().st_mode) == 0o600


def test_owner_is_kept_for_root(client):
    (client.work / "f").write_text("x")
    os.chown(client.work / "f", 1234, 4321)
    client.write("f", b"y", ("mode", 0o4711))
    status = (client.work / "f").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 4321, 0o4711)


def test_through_a_link(client):
    (client.work / "real").mkdir()
    (client.work / "real/target").write_text("old")
    (client.work / "link").symlink_to("real/target")
    (client.work / "chain").symlink_to("link")
    (client.work / "dangling").symlink_to("real/new")
    (client.work / "dirlink").symlink_to("real")
    assert client.write("chain", b"new")["created"] == 0
    assert (client.work / "real/target").read_bytes() == b"new" and (client.work / "chain").is_symlink()
    assert client.write("dangling", b"made")["created"] == 1
    assert (client.work / "real/new").read_bytes() == b"made" and (client.work / "dangling").is_symlink()
    assert client.write("dirlink/x", b"1")["created"] == 1
    assert (client.work / "real/x").read_bytes() == b"1"


def test_link_loop(client):
    (client.work / "a").symlink_to("b")
    (client.work / "b").symlink_to("a")
    assert client.write("a", b"x")["error"] == "link_loop"
    assert client.read("a")[0]["error"] == "link_loop"
    assert client.request("STAT", ("path", "a"))["error"] == "link_loop"


def test_onto_what_is_no_file(client):
    (client.work / "dir").mkdir()
    os.mkfifo(client.work / "fifo")
    for path in ("dir", "dir/", ".", "..", "/", "x/", "dir/."):
        assert client.write(path, b"x")["error"] == "is_directory", path
    assert client.write("fifo", b"x")["error"] == "not_regular"
    assert client.write("/dev/null", b"x")["error"] == "not_regular"
    (client.work / "file").write_text("x")
    assert client.write("file/below", b"x")["error"] == "not_directory"
    assert client.write("f" * 256, b"x")["error"] == "name_too_long"
    assert client.write("p/" * 2047 + "xyz", b"x")["error"] == "name_too_long"
    assert client.write(b"a\0b", b"x")["error"] == "invalid_path"
    assert left_over(client.work) == []


# --- B22


def test_B22_size_mismatch_leaves_the_old_file(client):
    (client.work / "f").write_bytes(b"old")
    channel = client.open("WRITE", [("path", "f"), ("size", 10)])
    client.data(channel, 0, 0, b"four")
    client.end(channel, 0, 4)
    assert client.frame_of(channel).fields["error"] == "size_mismatch"
    channel = client.open("WRITE", [("path", "f"), ("size", 4)])
    client.data(channel, 0, 0, b"four")
    client.end(channel, 0, 9)
    assert client.frame_of(channel).fields["error"] == "size_mismatch"
    assert (client.work / "f").read_bytes() == b"old" and left_over(client.work) == []


def test_B22_cancel_and_cut(client, agent):
    (client.work / "f").write_bytes(b"old")
    channel = client.open("WRITE", [("path", "f")])
    client.data(channel, 0, 0, b"half")
    client.send(channel, "CANCEL")
    assert client.frame_of(channel).fields["error"] == "cancelled"
    assert left_over(client.work) == []
    client.open("WRITE", [("path", "f")])
    client.data(client.next_channel - 1, 0, 0, b"half")
    wait_for(lambda: left_over(client.work), "its temporary file")
    client.close()
    agent.clients.clear()
    wait_for(lambda: not left_over(client.work), "its removal")
    assert (client.work / "f").read_bytes() == b"old"


def test_B22_no_space(agents, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(small)], check=True)
    try:
        client = agents().hello()
        (small / "f").write_bytes(b"o" * (1 << 20))
        assert client.write(f"{small}/f", bytes(5 << 20))["error"] == "no_space"
        assert (small / "f").read_bytes() == b"o" * (1 << 20) and os.listdir(small) == ["f"]
        assert client.write(f"{small}/g", b"small")["created"] == 1
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_B22_bind_mounted_file_is_not_truncated(client):
    (client.work / "source").write_bytes(b"old")
    inside = client.run(
        "sh", "-c", "touch mounted && mount --bind source mounted && sleep 1000 >/dev/null 2>&1 &", workdir=str(client.work)
    )
    assert inside.result["exit_code"] == 0
    wait = client.run("sh", "-c", "until grep -q mounted /proc/self/mounts; do :; done")
    assert wait.result["exit_code"] == 0
    assert client.write("mounted", b"new")["error"] == "permission_denied"
    assert (client.work / "source").read_bytes() == b"old" and left_over(client.work) == []


def test_permissions(agents, tmp_path):
    work = tmp_path / "w"
    work.mkdir()
    work.chmod(0o777)
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == 0 and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    client = agents(user=12345).hello()
    client.configure(workdir=str(work))
    (work / "closed").mkdir(mode=0o755)
    (work / "closed/file").write_text("old")
    (work / "closed/file").chmod(0o666)
    (work / "secret").write_text("x")
    (work / "secret").chmod(0o600)
    (work / "readonly").write_text("x")
    (work / "locked").mkdir(mode=0o700)
    assert client.write("closed/file", b"new")["error"] == "permission_denied"
    assert (work / "closed/file").read_text() == "old"
    assert client.write("closed/new/er", b"x")["error"] == "permission_denied"
    assert client.read("secret")[0]["error"] == "permission_denied"
    assert client.write("readonly", b"x")["error"] == "permission_denied"
    assert client.read("locked/x")[0]["error"] == "permission_denied"
    assert client.tree("locked")[0]["error"] == "permission_denied"
    assert client.request("REMOVE", ("path", "closed/file"))["error"] == "permission_denied"
    assert client.request("MODE", ("path", "secret"), ("mode", 0o777))["error"] == "permission_denied"
    assert client.write("own/file", b"x")["created"] == 1
    assert client.run("sh", "-c", "cat own/file; echo >own/file; rm -r own").result["exit_code"] == 0
    _, entries = client.tree(".")
    assert [e["path"] for e in entries] == [b"closed", b"closed/file", b"locked", b"readonly", b"secret"]
    assert client.request("PORT_WAIT", ("port", 1), ("timeout_ms", 0))["ready"] == 0  # the table can be read


# --- conditions


def test_conditions(client):
    first = client.write("f", b"1")
    assert client.write("f", b"2", ("if_none_match", 1))["error"] == "precondition_failed"
    second = client.write("f", b"2", ("if_match", first["etag"]))
    assert "error" not in second and second["etag"] != first["etag"]
    assert client.write("f", b"3", ("if_match", first["etag"]))["error"] == "precondition_failed"
    assert client.write("g", b"3", ("if_match", first["etag"]))["error"] == "precondition_failed"
    assert client.write("h", b"3", ("if_none_match", 1))["created"] == 1
    assert (client.work / "f").read_bytes() == b"2" and not (client.work / "g").exists()
    assert client.request("MODE", ("path", "f"), ("mode", 0o600), ("if_match", "x"))["error"] == "precondition_failed"


def test_condition_holds_until_the_end(client):
    first = client.write("f", b"1")
    channel = client.open("WRITE", [("path", "f"), ("if_match", first["etag"])])
    other = client.open("WRITE", [("path", "new"), ("if_none_match", 1)])
    wait_for(lambda: len(left_over(client.work)) == 2, "both temporary files")
    (client.work / "f").write_text("changed")
    (client.work / "new").write_text("came")
    for c in (channel, other):
        client.data(c, 0, 0, b"late")
        client.end(c, 0, 4)
        assert client.frame_of(c).fields["error"] == "precondition_failed"
    assert (client.work / "f").read_text() == "changed" and (client.work / "new").read_text() == "came"
    assert left_over(client.work) == []


# --- B23


def test_B23_what_is_not_there_or_no_file(client):
    (client.work / "dir").mkdir()
    (client.work / "empty").touch()
    (client.work / "dangling").symlink_to("nowhere")
    os.mkfifo(client.work / "fifo")
    assert client.read("absent")[0]["error"] == "file_not_found"
    assert client.read("absent/below")[0]["error"] == "file_not_found"
    assert client.read("empty/below")[0]["error"] == "not_directory"
    assert client.read("dir")[0]["error"] == "is_directory"
    assert client.read("empty")[1] == b""
    assert client.read("dangling")[0]["error"] == "file_not_found"
    for special in ("fifo", "/dev/zero", "/dev/null", "/dev/tty"):
        assert client.read(special)[0]["error"] == "not_regular"
    assert client.read("/proc/version")[1].startswith(b"Linux version")
    assert len(client.read("/proc/self/maps")[1]) > 200
    assert "error" in client.read("/proc/self/mem")[0]
    assert client.tree("absent")[0]["error"] == "file_not_found"
    assert client.tree("dir")[1] == []


def test_stat(client):
    (client.work / "f").write_text("12345")
    (client.work / "f").chmod(0o640)
    os.utime(client.work / "f", ns=(0, 1_700_000_000_123_456_789))
    (client.work / "l").symlink_to("f")
    status = (client.work / "f").stat()
    wanted = {
        "type": "f", "size": 5, "mode": 0o640, "mtime_ms": 1_700_000_000_123,
        "etag": f"{status.st_ino}-5-1700000000123456789",
    }
    assert client.request("STAT", ("path", "f")) == wanted
    assert client.request("STAT", ("path", "l")) == wanted
    assert client.request("STAT", ("path", ""))["type"] == "d"
    assert client.request("STAT", ("path", "/dev/null"))["type"] == "c"


# --- B52


NAMES = [
    b"-rf", b"--checkpoint-action=exec=sh x", b"a b", b" lead", b"trail ", b"a\nb", b"a\tb", b"[x]", b"*", b"q\"'$(id)",
    b"back\\slash", b"c:d", "日本".encode(), "\u00e9".encode(), "e\u0301".encode(), b"\xff", b"n" * 255, b"~", b"...", b"%41",
]


def test_B52_names(client):
    for i, name in enumerate(NAMES):
        assert client.write(name, b"%d" % i)["created"] == 1, name
    assert sorted(os.listdir(os.fsencode(client.work))) == sorted(NAMES)
    for i, name in enumerate(NAMES):
        assert client.read(name)[1] == b"%d" % i
    _, entries = client.tree(".", ("files_only", 1))
    assert [e["path"] for e in entries] == sorted(NAMES)
    for name in NAMES:
        assert "error" not in client.request("REMOVE", ("path", name))
    assert os.listdir(client.work) == []


def test_B52_long_path_and_dots(client):
    path = "/".join(["d" * 200] * 19) + "/" + "f" * 100
    assert 3900 < len(path) < 4096
    assert client.write(path, b"deep")["created"] == 1
    assert client.read(path)[1] == b"deep"
    assert client.read("x/../" + path)[0]["error"] == "file_not_found"  # the kernel resolves it
    client.write("a/b", b"short")
    assert client.read("./a/.././a//b")[1] == b"short"
    (client.work / "a/b").unlink()
    _, entries = client.tree(".", ("files_only", 1))
    assert [e["path"].decode() for e in entries] == [path]


# --- tree


def make_tree(root, rng, depth=3):
    for i in range(rng.randrange(1, 7)):
        name = rng.choice(["a", "a-b", "a.txt", "a0", "b", ".git", ".hidden", "B", "z z", "é"]) + (str(i) if i > 3 else "")
        path = root / name
        if path.exists() or path.is_symlink():
            continue
        kind = rng.randrange(5)
        if kind < 2 and depth:
            path.mkdir()
            make_tree(path, rng, depth - 1)
        elif kind == 2:
            path.symlink_to(rng.choice(["a", "nowhere", ".."]))
        else:
            path.write_text("x" * i)


@pytest.mark.parametrize("seed", range(8))
def test_tree(client, seed):
    make_tree(client.work, random.Random(seed))
    result, entries = client.tree(".")
    assert result["root"] == os.fsencode(client.work)
    expected = []

    def walk(directory, prefix):
        for name in sorted(os.listdir(os.fsencode(directory))):
            path = os.path.join(os.fsencode(directory), name)
            expected.append((prefix + name, os.lstat(path)))
            if stat.S_ISDIR(os.lstat(path).st_mode):
                walk(os.fsdecode(path), prefix + name + b"/")

    walk(client.work, b"")
    assert [e["path"] for e in entries] == [path for path, _ in expected]
    for entry, (path, status) in zip(entries, expected):
        assert entry["mode"] == stat.S_IMODE(status.st_mode) and entry["size"] == status.st_size
        assert entry["mtime_ms"] == status.st_mtime_ns // 1_000_000
        if entry["type"] == "l":
            assert entry["link"] == os.readlink(os.fsencode(client.work / os.fsdecode(path)))
    _, shallow = client.tree(".", ("depth", 1))
    assert [e["path"] for e in shallow] == [p for p, _ in expected if b"/" not in p]
    _, files = client.tree(".", ("files_only", 1))
    wanted = sorted(p for p, s in expected if stat.S_ISREG(s.st_mode) and b".git" not in p.split(b"/"))
    assert [e["path"] for e in files] == wanted


def test_tree_of_a_file_and_through_a_link(client):
    (client.work / "d").mkdir()
    (client.work / "d/f").write_text("xyz")
    (client.work / "l").symlink_to("d")
    assert client.tree("d/f")[0]["error"] == "not_directory"
    result, entries = client.tree("l")
    assert [e["path"] for e in entries] == [b"f"] and result["root"] == os.fsencode(client.work / "d")
    result, entries = client.tree("/", ("depth", 1))
    assert result["root"] == b"/" and b"proc" in [e["path"] for e in entries]


def test_tree_of_many(client):
    for i in range(20000):
        (client.work / f"file-with-a-longer-name-{i}").touch()
    _, entries = client.tree(".", ("files_only", 1))
    assert [e["path"].decode() for e in entries] == sorted(os.listdir(client.work))


def test_tree_cancelled(client):
    for i in range(3000):
        (client.work / f"file-with-a-longer-name-{i}").touch()
    channel = client.open("TREE", [("path", ".")])
    client.frame_of(channel)
    client.send(channel, "CANCEL")
    while (frame := client.frame_of(channel)).name != "RESULT":
        pass
    assert frame.fields["error"] == "cancelled"


# --- remove, move, mode, mkdir, replace


def test_remove(client):
    outside = client.work.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    make_tree(client.work, random.Random(3))
    (client.work / "tree").mkdir()
    (client.work / "tree/link").symlink_to(outside)
    (client.work / "tree/sub").mkdir()
    (client.work / "tree/sub/f").touch()
    os.mkfifo(client.work / "tree/fifo")
    assert client.request("REMOVE", ("path", "tree"))["error"] == "not_empty"
    assert client.request("REMOVE", ("path", "tree"), ("recursive", 1)) == {}
    assert not (client.work / "tree").exists() and (outside / "precious").exists()
    (client.work / "link").symlink_to(outside)
    assert client.request("REMOVE", ("path", "link"), ("recursive", 1)) == {}
    assert (outside / "precious").exists()
    assert client.request("REMOVE", ("path", "link"))["error"] == "file_not_found"
    (client.work / "e").mkdir()
    assert client.request("REMOVE", ("path", "e/"), ("recursive", 0)) == {}
    for path in ("/", ".", "..", "x/.."):
        assert "error" in client.request("REMOVE", ("path", path), ("recursive", 1))
    assert client.work.exists()


def test_remove_very_deep(client):
    script = "import os\nos.mkdir('deep');os.chdir('deep')\nfor i in range(3000):\n os.mkdir('d'*50);os.chdir('d'*50);open('f','w').close()"
    assert client.run("python3", "-c", script).result["exit_code"] == 0
    assert client.request("REMOVE", ("path", "deep"), ("recursive", 1)) == {}
    assert os.listdir(client.work) == []


def test_tree_very_deep_ends(client):
    script = "import os\nfor i in range(1200):\n os.mkdir('ddd');os.chdir('ddd');open('f','w').close()"
    assert client.run("python3", "-c", script).result["exit_code"] == 0
    _, entries = client.tree(".", ("files_only", 1))
    assert len(entries) == 1023 and max(len(e["path"]) for e in entries) < 4096  # what a path can name
    assert client.request("REMOVE", ("path", "ddd"), ("recursive", 1)) == {}


def test_move(client):
    client.write("a", b"1")
    client.write("b", b"2")
    assert client.request("MOVE", ("path", "a"), ("to", "b"))["error"] == "already_exists"
    assert "etag" in client.request("MOVE", ("path", "a"), ("to", "b"), ("overwrite", 1))
    assert (client.work / "b").read_bytes() == b"1" and not (client.work / "a").exists()
    assert "etag" in client.request("MOVE", ("path", "b"), ("to", "x/y/z"))
    assert (client.work / "x/y/z").read_bytes() == b"1"
    assert client.request("MOVE", ("path", "a"), ("to", "q/r"))["error"] == "file_not_found"
    assert not (client.work / "q").exists()
    assert client.request("MOVE", ("path", "x"), ("to", "x/y/in"))["error"] == "invalid_path"
    client.write("f", b"3")
    assert client.request("MOVE", ("path", "f"), ("to", "x"), ("overwrite", 1))["error"] == "is_directory"


def test_move_to_another_file_system(client):
    shm = f"/dev/shm/agent-test-{os.getpid()}"
    try:
        client.write("f", b"content" * 10000, ("mode", 0o640))
        assert "etag" in client.request("MOVE", ("path", "f"), ("to", shm))
        assert open(shm, "rb").read() == b"content" * 10000 and stat.S_IMODE(os.stat(shm).st_mode) == 0o640
        assert not (client.work / "f").exists()
        client.write("g", b"x")
        assert "error" in client.request("MOVE", ("path", "g"), ("to", shm))
        assert (client.work / "g").exists()
        (client.work / "d").mkdir()
        assert client.request("MOVE", ("path", "d"), ("to", shm + ".d"))["error"] == "not_supported"
    finally:
        os.unlink(shm)


def test_mode_and_mkdir(client):
    client.write("f", b"x")
    etag = client.request("STAT", ("path", "f"))["etag"]
    assert client.request("MODE", ("path", "f"), ("mode", 0o751), ("if_match", etag))["etag"] == etag
    assert stat.S_IMODE((client.work / "f").stat().st_mode) == 0o751
    assert client.request("MODE", ("path", "f"))["error"] == "invalid_field"
    assert client.request("MODE", ("path", "nope"), ("mode", 1))["error"] == "file_not_found"
    assert client.request("MKDIR", ("path", "d/e"), ("mode", 0o1777))["created"] == 1
    assert stat.S_IMODE((client.work / "d/e").stat().st_mode) == 0o1777
    assert stat.S_IMODE((client.work / "d").stat().st_mode) == 0o755
    assert client.request("MKDIR", ("path", "d/e"))["created"] == 0
    assert client.request("MKDIR", ("path", "f"))["error"] == "not_directory"
    assert client.request("MKDIR", ("path", "f/g"))["error"] == "not_directory"


def replace(client, old, new, count=0, path="f", **more):
    return client.request("REPLACE", ("path", path), ("old", old), ("new", new), ("count", count), *more.items())


def test_replace(client):
    (client.work / "f").write_bytes(b"one two \xff\x00 two aaa")
    (client.work / "f").chmod(0o600)
    assert replace(client, "two", "2", 3) | {"message": 0} == {"error": "conflict", "message": 0, "count": 2}
    assert replace(client, "three", "3")["count"] == 0
    result = replace(client, "two", "zwei", 2)
    assert result["count"] == 2 and (client.work / "f").read_bytes() == b"one zwei \xff\x00 zwei aaa"
    assert result["etag"] == client.request("STAT", ("path", "f"))["etag"]
    assert replace(client, b"\xff\x00", b"", 1)["count"] == 1
    assert replace(client, "aa", "b")["count"] == 1  # not overlapping
    assert (client.work / "f").read_bytes() == b"one zwei  zwei ba"
    assert stat.S_IMODE((client.work / "f").stat().st_mode) == 0o600
    assert replace(client, "", "x")["error"] == "invalid_field"
    assert replace(client, "a", "b", path="nope")["error"] == "file_not_found"
    assert replace(client, "one", "1", if_match="other")["error"] == "precondition_failed"
    big = b"A" * 1_500_000  # more than one frame
    (client.work / "f").write_bytes(b"<" + big + b">")
    assert replace(client, big, b"B" * 2_000_000, 1)["count"] == 1
    assert (client.work / "f").read_bytes() == b"<" + b"B" * 2_000_000 + b">"
    os.truncate(client.work / "f", (64 << 20) + 1)
    assert replace(client, "x", "y")["error"] == "too_large"
    assert left_over(client.work) == []


# --- what errors say


def test_errors_name_the_path(client):
    def said(op, path, *more):
        return client.request(op, ("path", path), *more)["message"]

    for op in ("STAT", "READ", "TREE", "REMOVE", "MODE"):
        assert said(op, "nope", ("mode", 0o600)) == "nope: No such file or directory", op
    missing = str(client.work / "nope")
    assert said("READ", missing) == f"{missing}: No such file or directory"
    assert said("READ", "") == ".: it is a directory"
    (client.work / "f").write_text("x")
    assert client.write("f/x", b"1")["message"] == "f/x: Not a directory"
    assert client.write(".", b"1")["message"].startswith(".: ")
    assert said("MKDIR", "f/x/y") == "f/x/y: Not a directory"
    assert replace(client, "y", "z")["message"] == "f: the text is there 0 times"
    assert said("MOVE", "nope", ("to", "g")) == "nope: No such file or directory"
    assert said("MOVE", "f", ("to", "f/g")) == "f/g: Not a directory"
    (client.work / "g").write_text("y")
    assert said("MOVE", "f", ("to", "g")) == "g: File exists"
    long = "ab/" + "\N{EURO SIGN}/" * 900 + "end"
    text = said("STAT", long)
    assert text.startswith("...") and text.endswith("/end: No such file or directory") and len(text.encode()) < 600
    assert text[3] in "/\N{EURO SIGN}"


# --- flow control, numbers, and helpers that die


def test_read_stalls_without_credit(client):
    client.write("f", bytes(200_000))
    channel = client.open("READ", [("path", "f")])
    got = 0
    with pytest.raises(TimeoutError):
        while True:
            frame = client.frame_of(channel, timeout=0.3)
            got += len(frame.payload) - 9 if frame.name == "DATA" else 0
    assert got == 32768
    assert client.run("true").result["exit_code"] == 0
    client.credit(channel, 1, got, 1 << 30)
    total = got
    while (frame := client.frame_of(channel)).name != "RESULT":
        total += len(frame.payload) - 9
    assert total == 200_000


def test_hole_in_a_write(client):
    channel = client.open("WRITE", [("path", "f")])
    client.data(channel, 0, 5, b"x")
    assert client.frame_of(channel).fields["error"] == "invalid_request"
    assert left_over(client.work) == []
    channel = client.open("WRITE", [("path", "f")])
    client.data(channel, 0, 0, b"abc")
    client.data(channel, 0, 1, b"bcd")  # known bytes are skipped
    client.end(channel, 0, 4)
    assert client.frame_of(channel).fields["created"] == 1
    assert (client.work / "f").read_bytes() == b"abcd"


def test_write_that_nobody_takes_is_bounded(client, agent):
    before = set(agent.processes())
    client.open("WRITE", [("path", "f")])
    wait_for(lambda: left_over(client.work), "its temporary file")
    (worker,) = set(agent.processes()) - before
    os.kill(worker, signal.SIGSTOP)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        for i in range(1000):
            client.data(1, 0, i * 32000, bytes(32000))
    os.kill(worker, signal.SIGCONT)
    wait_for(lambda: not left_over(client.work), "its removal")
    assert agent.hello().run("true").result["exit_code"] == 0


def test_many_at_once(client):
    channels = [client.open("READ", [("path", "/proc/version")]) for _ in range(150)]
    for channel in channels:
        assert client.frame_of(channel).name == "STARTED"
        content, result = client.collect(channel)
        assert content.startswith(b"Linux") and result == {}
    channels = [client.open("WRITE", [("path", f"f{i}")]) for i in range(300)]
    busy = [c for c in channels[256:] if client.frame_of(c).fields["error"] == "busy"]
    assert len(busy) == 44
    for channel in channels[:256]:
        client.send(channel, "CANCEL")
    for channel in channels[:256]:
        assert client.frame_of(channel).fields["error"] == "cancelled"
    assert client.write("f", b"x")["created"] == 1 and left_over(client.work) == []


def test_killed_helpers(client, agent):
    channel = client.open("WRITE", [("path", "f")])
    wait_for(lambda: left_over(client.work), "its temporary file")
    ours = [p for p in agent.processes() if p != agent.pid]
    for pid in ours:
        os.kill(pid, 9)
    assert client.frame_of(channel).fields["error"] == "file_io"
    wait_for(lambda: client.write("g", b"again").get("created") == 1, "a new helper")


def test_missing_workdir(agent, tmp_path):
    client = agent.hello()
    client.configure(workdir="/nowhere/at/all")
    assert client.read("f")[0]["error"] == "workdir_not_found"
    assert client.read("/proc/version")[1].startswith(b"Linux")
    assert client.write(f"{tmp_path}/f", b"x")["created"] == 1


def test_usage(client):
    client.write("f", os.urandom(300_000))
    assert client.run("sync").result["exit_code"] == 0
    usage = client.request("USAGE")
    assert 300_000 <= usage["disk"] < 3_000_000
