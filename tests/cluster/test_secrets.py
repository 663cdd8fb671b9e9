"""A registered secret is not in the pod, in etcd, in a process's argument list, nor in what the server keeps."""

import base64
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


def test_neither_in_the_cluster_nor_in_the_log(server, client, box):
    assert client.exec(box, f"echo $TOKEN; echo {LATER} >&2")["stdout"] == "***\n"
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
