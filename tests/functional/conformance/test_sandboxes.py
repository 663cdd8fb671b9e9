"""From create to gone: B17, B24, B48 (repeated use of an id), and the rules for input."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from server import at_once, wait_until


def test_create_show_list_delete(client):
    response = client.request("POST", "/v1/sandboxes", 201,
                              json={"id": "first", "image": client.image, "labels": {"team": "a"}, "ttl": 600})
    record = response.json()
    assert response.headers["Location"] == "/v1/sandboxes/first"
    assert record["id"] == "first" and record["state"] == "running" and record["reason"] is None and record["owner"] == "local"
    assert record["image"] == client.image and record["labels"] == {"team": "a"} and record["ttl"] == 600
    for name in ("created", "ready", "expires", "since"):
        assert record[name].endswith("Z"), name

    shown = client.sandbox("first")
    assert shown["uid"] == record["uid"]
    assert client.request("HEAD", "/v1/sandboxes/first", 200).content == b""
    assert "first" in [item["id"] for item in client.list()]

    assert client.delete("first").content == b""
    assert client.delete("first").content == b""  # not an error
    problem = client.problem("GET", "/v1/sandboxes/first", 410, "gone")
    assert problem["reason"] == "deleted"
    assert problem["sandbox"]["uid"] == record["uid"] and problem["sandbox"]["state"] == "gone"
    assert client.request("HEAD", "/v1/sandboxes/first").status_code == 410
    assert "first" not in [item["id"] for item in client.list()]
    assert "first" in [item["id"] for item in client.list("&state=gone")]


def test_a_gone_sandbox_answers_so_everywhere(client):
    client.create("past")
    client.delete("past")
    for method, rest in (("PATCH", ""), ("POST", "/execs"), ("GET", "/files?path=x"), ("PUT", "/files?path=x"), ("GET", "/tree"),
                         ("POST", "/previews"), ("POST", "/secrets")):
        body = {"json": {"POST /execs": {"cmd": ["true"]}, "POST /previews": {"port": 80}, "POST /secrets": {"values": ["x"]},
                         "PATCH ": {"ttl": 60}}[f"{method} {rest}"]} if method in ("POST", "PATCH") else {}
        client.problem(method, f"/v1/sandboxes/past{rest}", 410, "gone", **body)


def test_create_without_waiting(client):
    record = client.create("later", expect=202, wait=False)
    assert record["state"] in ("creating", "running")
    assert client.wait_state("later", "running")["uid"] == record["uid"]
    client.delete("later")


def test_everything_is_optional(client):
    record = client.post("/v1/sandboxes", None, 201)
    assert record["id"].startswith("run-") and len(record["id"]) == 16
    assert record["workdir"] == "/workspace" and record["image"] == client.image
    client.delete(record["id"])


def test_the_same_id_again_and_again(client):
    uids = set()
    for _ in range(8):
        uids.add(client.create("again")["uid"])
        assert client.tree("again", ".")["items"] == []  # nothing of the life before
        client.put("again", "left", b"x")
        client.delete("again")
    assert len(uids) == 8


def test_an_id_in_use_is_taken(client):
    first = client.create("taken")
    client.create_problem(409, "already_exists", id="taken")
    assert client.sandbox("taken")["uid"] == first["uid"]
    client.delete("taken")


def test_unknown_and_wrong_method(client):
    client.problem("GET", "/v1/sandboxes/nobody", 404, "not_found")
    client.problem("DELETE", "/v1/sandboxes/nobody", 404, "not_found")
    client.problem("POST", "/v1/sandboxes/nobody/execs", 404, json={"cmd": ["true"]})
    client.problem("GET", "/v1/nothing", 404)
    problem = client.problem("PUT", "/v1/sandboxes", 405, "method_not_allowed")
    assert set(problem["headers"]["Allow"].replace(" ", "").split(",")) == {"GET", "HEAD", "POST"}


WRONG = [
    ("id", {"id": "Upper"}), ("id", {"id": "a" * 41}), ("id", {"id": ""}), ("id", {"id": "-a"}), ("id", {"id": "a-"}),
    *(("id", {"id": name}) for name in ('a"; } location /x { #', "${x}", "*", "(a|b)", "a\nb", "x" * 10240)),
    ("id", {"id": "8000-a"}), ("id", {"id": "a.b"}), ("id", {"id": "a/../b"}), ("id", {"id": 7}), ("id", {"id": "a\u0000b"}),
    ("image", {"image": ""}), ("image", {"image": "x" * 501}), ("image", {"image": ["a"]}),
    ("env", {"env": {"A B": "1"}}), ("env", {"env": {"": "1"}}), ("env", {"env": {"A=B": "1"}}), ("env", {"env": {"1BAD": "1"}}),
    ("env", {"env": {"A\nB": "1"}}), ("env", {"env": {"A": 1}}), ("env", {"env": {"A; touch /tmp/pwn #": "1"}}),
    ("env", {"env": {"A": "a\u0000b"}}), ("env", {"env": []}),
    ("labels", {"labels": {"podsandbox.dev/owner": "me"}}), ("labels", {"labels": {"app.kubernetes.io/name": "x"}}),
    ("labels", {"labels": {"a": '"; } location /x { #'}}), ("labels", {"labels": {"a": "${x}"}}),
    ("labels", {"labels": {"nginx.ingress.kubernetes.io/x; y": "z"}}), ("labels", {"labels": {"a": "b c"}}), ("labels", {"labels": {"a": "x" * 64}}), ("labels", {"labels": {"a b": "c"}}),
    ("secrets", {"secrets": "abc"}), ("secrets", {"secrets": ["x" * 65537]}), ("secrets", {"secrets": [1]}),
    ("workdir", {"workdir": "relative"}), ("workdir", {"workdir": "/a/../b"}), ("workdir", {"workdir": "/opt/podsandbox/x"}),
    ("workdir", {"workdir": "/proc"}), ("workdir", {"workdir": "/a b'; touch /tmp/pwn; '\n"}),
    ("cpu", {"resources": {"cpu": "lots"}}), ("memory", {"resources": {"memory": "-1"}}), ("cpu", {"resources": {"cpu": 0}}),
    ("gpu", {"resources": {"gpu": 1}}), ("resources", {"resources": 3}),
    ("ttl", {"ttl": -1}), ("ttl", {"ttl": 0}), ("ttl", {"ttl": "10"}), ("ttl", {"ttl": 1e300}), ("ttl", {"ttl": 2**53}),
    ("ready_timeout", {"ready_timeout": -5}), ("ready_timeout", {"ready_timeout": 10**9}),
    ("writable_mounts", {"writable_mounts": ["/data"]}), ("writable_mounts", {"writable_mounts": {"data": "data"}}),
    ("writable_mounts", {"writable_mounts": {"tmp": "/x"}}), ("writable_mounts", {"writable_mounts": {"d": "/etc"}}),
    ("wait", {"wait": "yes"}), ("colour", {"colour": "red"}), ("run_as_user", {"run_as_user": 0}),
]


@pytest.mark.parametrize("field, body", WRONG)
def test_a_wrong_field_is_named(client, field, body):
    problem = client.problem("POST", "/v1/sandboxes", 400, json=body)
    assert problem["code"] in ("invalid_field", "invalid_json") and (field in problem["detail"] or "\\u0000" in json.dumps(body))
    assert problem["category"] == "request_error" and problem["retryable"] is False


def test_wrong_fields_make_nothing(client):
    before = {item["uid"] for item in client.list() + client.list("&state=gone") + client.list("&state=failed")}
    for _, body in WRONG[:20]:
        client.request("POST", "/v1/sandboxes", 400, json=body)
    assert {item["uid"] for item in client.list() + client.list("&state=gone") + client.list("&state=failed")} == before


def test_policy_is_not_a_syntax_error(client):
    client.create_problem(422, "policy_denied", run_as_user=2000)
    client.create_problem(422, "policy_denied", read_only_root=False)


def test_media_type_and_size(client):
    client.problem("POST", "/v1/sandboxes", 415, "unsupported_media_type", data="id=a",
                   headers={"Content-Type": "application/x-www-form-urlencoded"})
    client.problem("POST", "/v1/sandboxes", 400, "invalid_json", data="[]", headers={"Content-Type": "application/json"})
    client.problem("POST", "/v1/sandboxes", 400, "invalid_json", data='{"ttl": 1, "ttl": 2}', headers={"Content-Type": "application/json"})
    big = json.dumps({"env": {"A": "x" * (13 << 20)}})
    client.problem("POST", "/v1/sandboxes", 413, "too_large", data=big, headers={"Content-Type": "application/json"})


def test_dry_run_makes_nothing(client):
    reply = client.post("/v1/sandboxes?dry_run=true", {"id": "dry", "image": client.image})
    assert reply["dry_run"] is True and reply["id"] == "dry"
    client.problem("GET", "/v1/sandboxes/dry", 404)
    client.problem("POST", "/v1/sandboxes?dry_run=true", 400, "invalid_field", json={"ttl": -1})
    client.problem("POST", "/v1/sandboxes?dry_run=maybe", 400, json={})


@pytest.mark.needs("images")
def test_an_image_that_is_not_there(client):
    problem = client.create_problem((404, 422, 502), id="no-image", image="localhost/does-not-exist:1")
    assert problem["category"] == "provision_error" and problem["remediation"] and "does-not-exist" in problem["detail"], problem
    record = client.sandbox("no-image")
    assert (record["state"], record["reason"]) == ("failed", problem["code"]) and record["message"]
    client.delete("no-image")


def test_listing_filters_and_pages(client):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: client.create(f"many-{i}", labels={"n": str(i % 3), "kind": "many"}), range(7)))
    assert len(client.list("&label=kind=many")) == 7
    assert {item["id"] for item in client.list("&label=kind=many,n=1")} == {"many-1", "many-4"}
    page = client.get("/v1/sandboxes?label=kind=many&limit=4")
    assert len(page["items"]) == 4 and page["next"]
    rest = client.get(f"/v1/sandboxes?label=kind=many&limit=10&cursor={page['next']}")
    assert len(rest["items"]) == 3 and rest["next"] is None
    assert not {item["id"] for item in page["items"]} & {item["id"] for item in rest["items"]}
    assert len(client.list("&label=kind=many&state=running")) == 7
    assert client.list("&label=kind=many&state=failed") == []
    for bad in ("state=odd", "limit=0", "limit=501", "cursor=%21%21", "label=x", "limit=1&limit=2", "what=1"):
        client.problem("GET", f"/v1/sandboxes?{bad}", 400)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: client.delete(f"many-{i}"), range(7)))


def test_patch_ttl_and_labels(client):
    record = client.create("patched", ttl=100, labels={"a": "1"})
    changed = client.request("PATCH", "/v1/sandboxes/patched", 200, json={"ttl": 5000}).json()
    assert changed["expires"] > record["expires"] and changed["labels"] == {"a": "1"}
    changed = client.request("PATCH", "/v1/sandboxes/patched", 200, json={"labels": {"b": "2"}}).json()
    assert changed["labels"] == {"b": "2"} and client.sandbox("patched")["labels"] == {"b": "2"}
    client.problem("PATCH", "/v1/sandboxes/patched", 400, "invalid_field", json={"image": "x"})
    client.problem("PATCH", "/v1/sandboxes/patched", 400, "invalid_field", json={"ttl": -1})
    client.problem("PATCH", "/v1/sandboxes/patched", 400, "invalid_field", json={"labels": {"podsandbox.dev/x": "1"}})
    client.delete("patched")


def test_events_tell_what_happened(client):
    client.create("eventful")
    client.delete("eventful")
    path = "/v1/sandboxes/eventful/events"
    wait_until(lambda: client.get(path)["items"][-1]["type"] == "gone", what="the last event")
    page = client.get(path)
    kinds = [item["type"] for item in page["items"]]
    assert len(kinds) >= 3 and len({item["id"] for item in page["items"]}) == len(kinds), page
    after = client.get(f"/v1/sandboxes/eventful/events?after={page['items'][0]['id']}")
    assert [item["id"] for item in after["items"]] == [item["id"] for item in page["items"][1:]]


def test_b17_same_key_at_once(client):
    records = at_once(8, lambda: client.create(headers={"Idempotency-Key": "key-1"}, labels={"x": "1", "key": "one"}))
    assert len({record["uid"] for record in records}) == 1
    assert len(client.list("&label=key=one")) == 1
    client.create_problem(409, "idempotency_conflict", headers={"Idempotency-Key": "key-1"}, labels={"x": "2", "key": "one"})
    # The same JSON, written otherwise, is the same body.
    again = client.request("POST", "/v1/sandboxes", 201, headers={"Idempotency-Key": "key-1", "Content-Type": "application/json"},
                           data='{ "labels": {"key":"\\u006fne", "x":"1"} , "image":%s}' % json.dumps(client.image))
    assert again.json()["uid"] == records[0]["uid"]
    client.delete(records[0]["id"])
    client.create_problem(410, headers={"Idempotency-Key": "key-1"}, labels={"x": "1", "key": "one"})


def test_idempotency_key_syntax(client):
    client.problem("POST", "/v1/sandboxes", 400, json={}, headers={"Idempotency-Key": "x" * 256})


def test_deletes_at_once_are_one(client):
    client.create("together")
    assert set(at_once(8, lambda: client.request("DELETE", "/v1/sandboxes/together").status_code)) == {204}
