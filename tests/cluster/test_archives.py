"""Archives and watches where the kernel, or the image, is not what they are used to: gVisor, and no shell. On runc it is the
conformance tests that say so."""

import io
import json
import os
import tarfile

import pytest

SPECS = {"gvisor": {"runtime_class": "gvisor"}, "distroless": {"image": "localhost/distroless:1"}}


@pytest.fixture(scope="module", params=SPECS)
def box(request, cloud):
    record = cloud.client().create(ttl=3600, **SPECS[request.param])
    yield record["id"]
    cloud.client().delete(record["id"], expect=(202, 204))


def entry(name, data=b"", kind=tarfile.REGTYPE, link="", mode=0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.mtime, info.size = kind, link, mode, 1234567890, len(data)
    return info, data


def archive(*entries):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def test_up_and_down_again(client, box):
    at, big = f"/v1/sandboxes/{box}/archive?path=up", os.urandom(20 << 20)
    data = archive(entry("d", kind=tarfile.DIRTYPE, mode=0o700), entry("d/run", b"x", mode=0o4755), entry("d/big", big),
                   entry("soft", kind=tarfile.SYMTYPE, link="d/run"),
                   entry("hard", kind=tarfile.LNKTYPE, link="d/run"), entry("pipe", kind=tarfile.FIFOTYPE))
    made = client.request("PUT", at, 200, data=data).json()
    assert (made["files"], made["directories"], made["links"], made["skipped_total"]) == (2, 1, 2, 1)
    tar = tarfile.open(fileobj=io.BytesIO(client.request("GET", at + "&format=tar.gz", 200).content))
    assert tar.extractfile("d/big").read() == big
    assert (tar.getmember("d").mode, tar.getmember("d/run").mode & 0o7777, tar.getmember("d/run").mtime) == (0o700, 0o755, 1234567890)
    assert tar.getmember("soft").linkname == "d/run" and tar.getmember("hard").linkname == "d/run" and tar.getmember("hard").islnk()


def test_nothing_is_written_through_a_link(client, box):
    client.put(box, "outside/secret", b"secret")
    at = f"/v1/sandboxes/{box}/archive?path=into"
    for entries in ([entry("l", kind=tarfile.SYMTYPE, link="../outside"), entry("l/x", b"!")],
                    [entry("h", kind=tarfile.LNKTYPE, link="../outside/secret")],
                    [entry("l", kind=tarfile.SYMTYPE, link="../outside"), entry("h", kind=tarfile.LNKTYPE, link="l/secret")], [entry("../x", b"!")]):
        client.problem("PUT", at, 400, "invalid_archive", data=archive(*entries))
    assert [item["path"] for item in client.tree(box, "outside")["items"]] == ["secret"] and client.read(box, "outside/secret") == b"secret"


def test_watching(client, box):
    client.put(box, "w/first", b"1")
    answer = client.request("GET", f"/v1/sandboxes/{box}/files/watch?path=w&recursive=true", 200, stream=True)
    lines, seen = answer.iter_lines(chunk_size=None), []

    def until(kind, path):
        for line in lines:
            event = json.loads(line)
            seen.append(event)
            if (event["type"], event.get("path")) == (kind, path):
                return event
            assert event["type"] != "heartbeat", seen
        raise AssertionError(seen)
    client.put(box, "w/new/deep/file", b"2")
    until("created", "new")
    client.put(box, "w/new/deep/later", b"3")
    until("moved", "new/deep/later")
    client.request("PATCH", client.file_url(box, "w/first"), 200, json={"to": "w/second"})
    assert until("moved", "second")["from"] == "first"
    client.request("DELETE", client.file_url(box, "w/second"), 204)
    until("deleted", "second")
    answer.close()


def test_changes(client, box):
    client.put(box, "c/kept", b"1")
    client.put(box, "c/d/edited", b"1")
    client.put(box, "c/gone", b"1")
    at = f"/v1/sandboxes/{box}/changes?path=c"
    token = client.get(at)["token"]
    client.put(box, "c/d/edited", b"2", expect=200)
    client.put(box, "c/new", b"3")
    client.request("DELETE", client.file_url(box, "c/gone"), 204)
    found = client.get(f"{at}&since={token}")
    assert [[entry["path"] for entry in found[kind]] for kind in ("added", "changed", "removed")] == [["new"], ["d/edited"], ["gone"]]
