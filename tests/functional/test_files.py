"""Files where something goes wrong below them: B22. The rest is in tests/functional/conformance."""

from server import open_request, wait_until

MIB = 1 << 20


def test_b22_no_space_leaves_the_old_file(client, api):
    api.node.tmpfs_sizes["/small"] = "2m"
    client.create("files", writable_mounts={"small": "/small"})
    api.node.tmpfs_sizes.clear()
    client.put("files", "/small/f", b"o" * MIB)
    client.problem("PUT", client.file_url("files", "/small/f"), (507, 413), "no_space", data=b"n" * (5 * MIB))
    assert client.read("files", "/small/f") == b"o" * MIB
    assert client.exec("files", ["ls", "-A", "/small"])["stdout"] == "f\n"
    client.put("files", "/small/g", b"fits")
    client.delete("files")


def test_b22_killed_in_the_middle_of_an_upload(fresh):
    server = fresh().start()
    client = server.client()
    client.create("killed")
    client.put("killed", "f", b"old")
    sock = open_request(server.port, "PUT", client.file_url("killed", "f"), b"", {"Content-Length": 2 * MIB})
    sock.sendall(b"n" * MIB)
    wait_until(lambda: server.api.stream("killed").received_bytes > 100000, what="some of it being on its way")
    server.kill()
    sock.close()
    server.start()
    client.wait_state("killed", "running")
    wait_until(lambda: client.request("GET", client.file_url("killed", "f")).content == b"old")
    assert [item["path"] for item in client.tree("killed", ".")["items"]] == ["f"]
