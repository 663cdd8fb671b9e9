"""Images of the local driver: OCI archives as they come from elsewhere, and what is wrong with some."""

import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest
import requests

from local_server import let_others_pass
from server import WRAPPER, wait_until
from test_local_start import BUSYBOX, fresh, make_root  # noqa: F401 (fresh is a fixture)

PACK = Path(__file__).resolve().parents[1] / "cluster" / "pack-oci"
CONFIG = json.dumps({"Env": ["PATH=/bin", "MADE_BY=the image"], "User": "1000:1000", "Cmd": ["sh"]})

pytestmark = [pytest.mark.skipif(not BUSYBOX.exists(), reason="needs busybox-static"),
              pytest.mark.skipif(bool(WRAPPER), reason="valgrind 3.19 does not know openat2")]


def pack(root, archive):
    archive.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, PACK, "localhost/small:1", root, CONFIG, archive], check=True)


@pytest.fixture
def place(fresh, tmp_path):  # noqa: F811
    """A server and the folder of its images, with localhost/small:1 in it."""
    class Place:
        images, cache = tmp_path / "images", tmp_path / "cache"
        image = "localhost/small:1"

        @staticmethod
        def left():
            return os.listdir(tmp_path / "cache/unpacking")

        @staticmethod
        def unpacked():
            return os.listdir(tmp_path / "cache/images")

        @classmethod
        def server(cls, *options):
            return fresh("--local-images", cls.images, "--local-image-cache", cls.cache, *options).start()

    make_root(tmp_path / "root")
    pack(tmp_path / "root", Place.images / "localhost/small_1.tar")
    let_others_pass(Place.images)
    return Place


def test_an_oci_archive(place):
    client = place.server().client()
    for image in (place.image, "oci-archive:localhost/small_1.tar", str(place.images / "localhost/small:1")):
        box = client.create(image=image)
        out = client.exec(box["id"], 'cat /etc/made-for; echo "$MADE_BY"; busybox stat -c %a /bin/busybox')
        assert (out["stdout"], out["exit_code"]) == ("this image\nthe image\n755\n", 0), out
        assert box["image"] == image
        assert client.exec(box["id"], "echo x >/etc/made-for")["exit_code"] != 0
        client.delete(box["id"])
    assert len(place.unpacked()) == 1


def test_many_creates_unpack_once(place):
    client = place.server().client()
    made = []
    threads = [threading.Thread(target=lambda: made.append(client.create(image=place.image)["id"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    for box in made:
        assert client.exec(box, ["cat", "/etc/made-for"])["stdout"] == "this image\n"
    assert len(place.unpacked()) == 1 and place.left() == []


def test_an_image_in_use_stays(place, tmp_path):
    """Over a restart too; one that nobody uses goes when there is no room."""
    (tmp_path / "root/etc/made-for").write_text("another\n")
    pack(tmp_path / "root", place.images / "other.tar")
    server = place.server("--local-image-cache-size", "1")
    client = server.client()
    box = client.create(image=place.image)["id"]
    server.kill()
    server.start()
    client = server.client()
    other = client.create(image="other")["id"]
    assert len(place.unpacked()) == 2
    assert client.exec(box, ["cat", "/etc/made-for"])["stdout"] == "this image\n"
    client.delete(box)
    server.wait_gone(box)
    third = client.create(image="other")["id"]
    assert len(place.unpacked()) == 1
    for id in (other, third):
        assert client.exec(id, ["cat", "/etc/made-for"])["stdout"] == "another\n"


def spoilt(archive):
    data = bytearray(archive.read_bytes())
    at = data.index(b"\x1f\x8b\x08")  # of the layer
    data[at + 2000] ^= 0xff
    return bytes(data)


def tar_of(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            archive.addfile(member)
    return out.getvalue()


def test_bad_images(place):
    client = place.server().client()
    (place.images / "spoilt.tar").write_bytes(spoilt(place.images / "localhost/small_1.tar"))
    (place.images / "cut.tar").write_bytes((place.images / "localhost/small_1.tar").read_bytes()[:100_000])
    (place.images / "up.tar").write_bytes(tar_of(("../x", tarfile.REGTYPE, "")))
    (place.images / "through.tar").write_bytes(tar_of(("l", tarfile.SYMTYPE, "/tmp"), ("l/x", tarfile.REGTYPE, "")))
    (place.images / "hard.tar").write_bytes(tar_of(("h", tarfile.LNKTYPE, "/etc/passwd")))
    (place.images / "none.tar").write_bytes(b"")
    for name, word in (("spoilt", ""), ("cut", ""), ("up", "../x"), ("through", "l/x"), ("hard", "/etc/passwd"), ("none", "")):
        problem = client.create_problem(422, "invalid_image", image=name)
        assert word in problem["detail"] and name in problem["detail"], problem
        assert place.left() == [] and place.unpacked() == [], name
    client.create_problem(422, "invalid_image", image="nothing")
    client.create_problem(422, "invalid_image", image="localhost/small_1:2")
    client.create_problem(422, "invalid_image", image="localhost/../../etc")
    client.create_problem(422, "policy_denied", image="dir:/etc")
    (place.images / "link").symlink_to("/etc")
    client.create_problem(422, "policy_denied", image="link")


def test_killed_while_it_unpacks(place, tmp_path):
    big = tmp_path / "root/big"
    big.write_bytes(os.urandom(1 << 20) * 100)
    pack(tmp_path / "root", place.images / "big.tar")
    server = place.server()
    client = server.client()

    def create():
        with pytest.raises(requests.ConnectionError):
            client.create(image="big")
    thread = threading.Thread(target=create)
    thread.start()
    wait_until(lambda: place.left(), what="the unpacking")
    server.kill()
    thread.join()
    assert place.unpacked() == []
    for name in place.left():
        (place.cache / "unpacking" / name / "of-the-first-life").touch()
    assert list(place.cache.glob("unpacking/*/of-the-first-life"))
    server.start()
    assert not list(place.cache.glob("unpacking/*/of-the-first-life"))
    client = server.client()
    box = client.create(image="big")["id"]
    assert client.exec(box, ["busybox", "stat", "-c", "%s", "/big"])["stdout"] == f"{100 << 20}\n"
    wait_until(lambda: place.left() == [], what="nothing being left half unpacked")
