"""Keys, owners and the admin."""

import pytest

from server import wait_until
from test_start_faults import never_starts

KEYS = {"key-of-alice": ("alice", "user"), "key-of-bob": ("bob", "user"), "key-of-root": ("root", "admin")}


@pytest.fixture
def alice(server):
    return server.client("key-of-alice")


@pytest.fixture
def bob(server):
    return server.client("key-of-bob")


@pytest.fixture
def admin(server):
    return server.client("key-of-root")


@pytest.fixture
def hers(alice):
    record = alice.create("hers", labels={"secretive": "yes"})
    yield record
    alice.delete("hers")


def test_who_calls(alice, admin):
    assert alice.get("/v1/capabilities")["caller"] == {"owner": "alice", "role": "user"}
    assert admin.get("/v1/capabilities")["caller"] == {"owner": "root", "role": "admin"}


def test_no_key_no_answer(server, hers):
    for key in (None, "wrong", "key-of-alice ", "KEY-OF-ALICE", "x" * 5000):
        nobody = server.client(key)
        for method, path in (("GET", "/v1/sandboxes"), ("GET", "/v1/sandboxes/hers"), ("POST", "/v1/sandboxes"),
                             ("GET", "/v1/admin/sandboxes"), ("GET", "/v1/capabilities"), ("DELETE", "/v1/sandboxes/hers")):
            response = nobody.request(method, path)
            assert response.status_code in (400, 401, 431), (key, method, path, response.text)
            assert "hers" not in response.text
    nobody = server.client()
    problem = nobody.problem("GET", "/v1/sandboxes", 401, "unauthenticated")
    assert problem["headers"]["WWW-Authenticate"].startswith("Bearer")
    assert nobody.request("GET", "/healthz").status_code == 200


def test_two_ways_to_send_it(server):
    nobody = server.client()
    nobody.request("GET", "/v1/sandboxes", 200, headers={"X-API-Key": "key-of-alice"})
    nobody.request("GET", "/v1/sandboxes", 200, headers={"Authorization": "bearer key-of-alice"})
    nobody.request("GET", "/v1/sandboxes", 401, headers={"Authorization": "Basic key-of-alice"})


def test_others_do_not_exist(hers, alice, bob):
    """Every route answers 404, in the same words as for an id that nobody has."""
    routes = [("GET", ""), ("HEAD", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/execs"), ("GET", "/execs"), ("GET", "/execs/1"),
              ("GET", "/execs/1/output"), ("PUT", "/execs/1/stdin"), ("GET", "/files?path=x"), ("PUT", "/files?path=x"),
              ("DELETE", "/files?path=x"), ("PATCH", "/files?path=x"), ("GET", "/tree?path=."), ("POST", "/previews"),
              ("GET", "/previews"), ("DELETE", "/previews/80"), ("GET", "/previews/80/log"), ("POST", "/secrets"), ("GET", "/events")]
    for method, rest in routes:
        body = {"json": {}} if method in ("POST", "PATCH") else {}
        got = bob.request(method, "/v1/sandboxes/hers" + rest, **body)
        none = bob.request(method, "/v1/sandboxes/none" + rest, **body)
        assert got.status_code == none.status_code == 404, (method, rest, got.status_code, none.status_code, got.text)
        if method != "HEAD":
            assert got.json()["detail"].replace("hers", "none") == none.json()["detail"]
    assert bob.list() == []
    assert alice.sandbox("hers")["state"] == "running"


def test_ids_are_one_space_but_do_not_reveal_the_owner(hers, alice, bob):
    problem = bob.create_problem(409, "already_exists", id="hers")
    assert "alice" not in str(problem) and "sandbox" not in problem
    assert problem["detail"] == "the id 'hers' is taken" and "another id" in problem["remediation"], problem
    assert "running" in alice.create_problem(409, "already_exists", id="hers")["detail"]


def test_a_failed_one_keeps_its_id_from_others(api, alice, bob, admin):
    """Its owner may use the id again, others may not before the record is gone."""
    api.node.scripts["sandbox-broken"] = never_starts(("InvalidImageName", "couldn't parse image name"))
    alice.create_problem(422, "invalid_image", id="broken")
    for other in (bob, admin):
        problem = other.create_problem(409, "already_exists", id="broken")
        assert problem["detail"] == "the id 'broken' is taken" and "sandbox" not in problem, problem
    assert alice.sandbox("broken")["state"] == "failed"
    api.node.scripts.clear()
    assert alice.create("broken")["state"] == "running"
    alice.delete("broken")


def test_gone_ones_are_private_too(alice, bob):
    alice.create("past")
    alice.delete("past")
    alice.problem("GET", "/v1/sandboxes/past", 410)
    bob.problem("GET", "/v1/sandboxes/past", 404)
    assert bob.list("&state=gone") == []


def test_owner_is_taken_from_the_key(hers, alice, admin):
    assert hers["owner"] == "alice"
    assert [item["id"] for item in alice.list()] == ["hers"]
    alice.problem("GET", "/v1/sandboxes?owner=bob", 403)
    assert alice.create_problem(400, owner="bob")


def test_admin_sees_all(hers, bob, admin):
    bob.create("his")
    everything = admin.get("/v1/admin/sandboxes")
    assert {item["id"]: item["owner"] for item in everything["items"]} == {"hers": "alice", "his": "bob"}
    one = next(item for item in everything["items"] if item["id"] == "his")
    for name in ("state", "reason", "age", "image", "backend"):
        assert name in one, name
    assert [item["id"] for item in admin.get("/v1/admin/sandboxes?owner=bob")["items"]] == ["his"]
    assert admin.get("/v1/admin/stats")
    assert admin.exec("his", ["true"])["exit_code"] == 0
    admin.delete("his")


def test_admin_routes_are_for_admins(alice):
    for method, path in (("GET", "/v1/admin/sandboxes"), ("GET", "/v1/admin/stats"), ("POST", "/v1/admin/reap")):
        alice.problem(method, path, 403, "forbidden", json={} if method == "POST" else None)


def test_keys_file_is_read_again(server, alice):
    server.keys["key-of-carol"] = ("carol", "user")
    server.write_keys()
    carol = server.client("key-of-carol")
    wait_until(lambda: carol.request("GET", "/v1/sandboxes").status_code == 200, what="the new key")
    del server.keys["key-of-carol"]
    server.write_keys()
    wait_until(lambda: carol.request("GET", "/v1/sandboxes").status_code == 401, what="the key being taken away")
    (server.dir / "api-keys").write_text("this is no keys file\n")
    assert alice.request("GET", "/v1/sandboxes").status_code == 200  # the last good one stays
    server.write_keys()


def test_keys_are_not_logged(server, alice):
    alice.list()
    server.client("guess-guess-guess").request("GET", "/v1/sandboxes")
    assert "key-of-alice" not in server.log() and "guess-guess" not in server.log()


def test_a_broken_keys_file_does_not_start(fresh, tmp_path):
    server = fresh()
    (tmp_path / "bad-keys").write_text("nonsense\n")
    server.options += ["--api-keys-file", str(tmp_path / "bad-keys")]
    server.spawn()
    assert server.process.wait(30) != 0
    server.process = None


def test_open_addresses_need_keys(fresh):
    server = fresh("--listen", "0.0.0.0:0")
    server.spawn()
    assert server.process.wait(30) != 0
    assert "api-keys-file" in server.log()
    server.process = None
