"""What an admin sees: every owner's sandboxes with all that matters, page by page through 500 records."""

from urllib.parse import quote

import pytest

from cluster import ClusterServer, pod_of
from server import Problem

KEYS = {"key-of-alice": ("alice", "user"), "key-of-bob": ("bob", "user"), "key-of-root": ("root", "admin")}


@pytest.fixture(scope="module")
def keyed(clean_cluster, tmp_path_factory):
    server = ClusterServer(tmp_path_factory.mktemp("keyed"), keys=KEYS).start()
    yield server
    server.stop()
    server.sweep()


def test_all_owners_with_every_field(keyed):
    alice, bob, root = (keyed.client(key) for key in KEYS)
    alice.create("of-alice", image="localhost/busybox:1", labels={"team": "a"}, resources={"cpu": 1, "memory": "256Mi"})
    bob.create("of-bob", image="localhost/busybox:1")
    listed = {item["id"]: item for item in root.get("/v1/admin/sandboxes")["items"]}
    assert set(listed) == {"of-alice", "of-bob"}
    one = listed["of-alice"]
    pod = pod_of("of-alice")
    assert (one["owner"], one["state"], one["reason"], one["image"]) == ("alice", "running", None, "localhost/busybox:1")
    assert one["age"] > 0 and one["labels"] == {"team": "a"} and one["created"] and one["expires"] and one["since"]
    assert one["backend"]["node"] == pod["spec"]["nodeName"] and one["backend"]["name"] == pod["metadata"]["name"]
    assert one["backend"]["uid"] == pod["metadata"]["uid"]
    assert (one["resources"]["cpu"], one["resources"]["memory"]) == ("1", "256Mi")
    assert one["limits"]["memory"] == {"value": 256 << 20, "enforced": True}
    assert root.get("/v1/admin/stats")["sandboxes"]["running"] == 2
    assert [item["id"] for item in root.get("/v1/admin/sandboxes?owner=bob")["items"]] == ["of-bob"]
    assert [item["id"] for item in root.get("/v1/admin/sandboxes?label=team%3Da")["items"]] == ["of-alice"]

    assert [item["id"] for item in alice.get("/v1/sandboxes")["items"]] == ["of-alice"]
    alice.problem("GET", "/v1/sandboxes/of-bob", 404)
    alice.exec_problem("of-bob", ["true"], 404)
    alice.problem("DELETE", "/v1/sandboxes/of-bob", 404)
    alice.problem("GET", "/v1/admin/sandboxes", 403)
    with pytest.raises(Problem):
        keyed.client("wrong").get("/v1/sandboxes")
    assert root.exec("of-bob", ["echo", "hi"])["stdout"] == "hi\n"
    for client, id in ((alice, "of-alice"), (bob, "of-bob")):
        client.delete(id)


def test_paging_through_500_records(keyed):
    """Failed creates make records at the cost of one answer of the cluster."""
    alice, root = keyed.client("key-of-alice"), keyed.client("key-of-root")
    count = 500
    for number in range(count):
        alice.create_problem(422, "runtime_class_missing", id=f"many-{number}", runtime_class="no-such-class")
    for limit in (7, 100, 500):
        pages, ids, cursor = 0, [], ""
        while cursor is not None:
            page = root.get(f"/v1/admin/sandboxes?state=all&limit={limit}{cursor and '&cursor=' + quote(cursor)}")
            assert len(page["items"]) <= limit
            pages, cursor = pages + 1, page["next"]
            ids += [item["id"] for item in page["items"]]
        many = [id for id in ids if id.startswith("many-")]
        assert many == [f"many-{number}" for number in reversed(range(count))]  # newest first, none twice, none missing
        assert pages >= count // limit
    root.problem("GET", "/v1/admin/sandboxes?cursor=nonsense", 400)
    root.problem("GET", "/v1/admin/sandboxes?limit=501", 400)
