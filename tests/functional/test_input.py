"""Bad input, derived from openapi.yaml, so that every field and parameter of every route is tried: types, limits, and the
statuses that each route owes."""

import json
import re
from pathlib import Path

import pytest
import yaml

from server import wait_until
from test_contract import METHODS, operations, resolve

DOCUMENT = yaml.safe_load((Path(__file__).resolve().parents[2] / "openapi.yaml").read_text())
# The fake driver's own routes are refused by this one, whatever they are sent (test_fake_driver.py).
OPERATIONS = [operation for operation in operations(DOCUMENT) if not operation[1].startswith("/v1/fake/")]
WRONG = {"string": [5, True, ["x"], {"x": 1}], "number": ["5", True, [5], {}, -1], "integer": ["5", True, [5], {}, -1, 1.5, 2**53 + 2],
         "boolean": [1, "true", [True], {}], "array": ["x", 5, True, {"x": "y"}], "object": ["x", 5, True, ["x"]]}
SESSION = 2  # of the box; its first execution is a command
# Words without a pattern in the contract: still none may be longer than this. Texts (env, stdin, secrets, an edit) may.
WORDS = {"image", "workdir", "runtime_class", "network", "to", "cpu", "memory", "storage", "cpu_request", "memory_request"}


@pytest.fixture(scope="module")
def box(cloud):
    client = cloud.client()
    client.create("input", ttl=3600)
    client.exec("input", ["true"])
    client.put("input", "x", b"x")
    assert client.post("/v1/sandboxes/input/sessions", expect=201)["id"] == SESSION
    return "input"


@pytest.fixture(scope="module")
def gone(cloud):
    client = cloud.client()
    client.create("gone-one")
    client.exec("gone-one", ["true"])
    assert client.post("/v1/sandboxes/gone-one/sessions", expect=201)["id"] == SESSION
    client.delete("gone-one")
    return "gone-one"


def schema_of(node):
    """With what it refers to merged in."""
    merged = {}
    while "$ref" in node:
        merged = {**{name: value for name, value in node.items() if name != "$ref"}, **merged}
        node = resolve(DOCUMENT, {"$ref": node["$ref"]})
    return {**node, **merged}


def json_bodies():
    for method, path, operation, parameters in OPERATIONS:
        content = operation.get("requestBody", {}).get("content", {})
        if "application/json" in content:
            yield method, path, parameters, schema_of(content["application/json"]["schema"])


def base(schema):
    """The least that the body must have."""
    valid = {"cmd": ["true"], "port": 8000, "values": ["value"], "signal": "TERM", "cols": 80, "rows": 24, "command": "true"}
    return {name: valid[name] for name in schema.get("required", [])}


def types_of(schema):
    kind = schema.get("type", "object")
    return kind if isinstance(kind, list) else [kind]


def fits(value, kinds):
    if isinstance(value, str):
        return "string" in kinds
    return "number" in kinds and type(value) in (int, float) and value >= 0


def wrong_types(schema):
    kinds = types_of(schema)
    yield from (value for kind in kinds for value in WRONG[kind] if not fits(value, kinds))
    items, values = schema_of(schema.get("items", {})), schema.get("additionalProperties")
    if items:
        yield from ([value] for value in WRONG[items["type"]])
    if isinstance(values, dict):
        yield from ({"name": value} for value in WRONG[values["type"]])


def beyond_limits(name, schema):
    if "minimum" in schema:
        yield schema["minimum"] - 1
    if "maximum" in schema:
        yield schema["maximum"] + 1
    if "enum" in schema or "const" in schema:
        yield "no-such-word" if "enum" in schema else not schema["const"]
    if "pattern" in schema:
        yield from ("!! {}", "x" * 300)
    if "maxLength" in schema:
        yield "x" * (schema["maxLength"] + 1)
    if "maxItems" in schema:
        yield ["x"] * (schema["maxItems"] + 1)
    if schema.get("minItems"):
        yield []
    if "maxProperties" in schema:
        yield {f"n{number}": "/x" for number in range(schema["maxProperties"] + 1)}
    if schema.get("items", {}).get("maxLength"):
        yield ["x" * (schema["items"]["maxLength"] + 1)]
    if isinstance(schema.get("additionalProperties"), dict) and "maxLength" in schema["additionalProperties"]:
        yield {"name": "x" * (schema["additionalProperties"]["maxLength"] + 1)}
    if name in WORDS:
        yield "x" * 70000


def fields(schema, under=()):
    """(names on the way, schema) of each field, nested ones too."""
    for name, node in schema.get("properties", {}).items():
        node = schema_of(node)
        yield (*under, name), node
        yield from fields(node, (*under, name))


def within(names, value):
    for name in reversed(names):
        value = {name: value}
    return value


def target_of(path, box):
    return path.format(id=box, n=1, port=8000, s=SESSION, file="app.js")


def call(client, box, method, path, parameters, query="", **options):
    target = target_of(path, box)
    if path.endswith("/attach"):
        options["headers"] = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
                              "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    needed = [f"{p['name']}=x" for p in parameters if p["in"] == "query" and p.get("required")]
    return client.request(method, target + "?" + "&".join(needed + ([query] if query else [])), **options)


BODIES = [pytest.param(*body, id=f"{body[0]} {body[1]}") for body in json_bodies()]


@pytest.mark.parametrize("method, path, parameters, schema", BODIES)
def test_every_field_has_a_type(client, box, method, path, parameters, schema):
    for names, node in fields(schema):
        for value in wrong_types(node):
            answer = call(client, box, method, path, parameters, json={**base(schema), **within(names, value)})
            assert answer.status_code == 400 and names[-1] in answer.json()["detail"], (names, value, answer.text)


@pytest.mark.parametrize("method, path, parameters, schema", BODIES)
def test_every_field_has_a_limit(client, box, method, path, parameters, schema):
    """400, but where the contract has a status of its own: too long, and what this server does not do."""
    for names, node in fields(schema):
        for value in beyond_limits(names[-1], node):
            answer = call(client, box, method, path, parameters, json={**base(schema), **within(names, value)})
            assert answer.status_code in (400, 413, 422), (names, str(value)[:80], answer.text)
            problem = answer.json()
            wanted = {400: {"invalid_field"}, 413: {"argument_too_long", "too_large"}, 422: {"not_supported", "policy_denied"}}
            assert problem["code"] in wanted[answer.status_code], (names, problem)
            assert names[-1] in problem["detail"], (names, str(value)[:80], problem)


@pytest.mark.parametrize("method, path, parameters, schema", BODIES)
def test_every_body_is_one_known_object_of_json(client, box, method, path, parameters, schema):
    def refused(status, code, data, kind="application/json"):
        answer = call(client, box, method, path, parameters, data=data, headers={"Content-Type": kind})
        assert (answer.status_code, answer.json()["code"]) == (status, code), (data[:60], answer.text)
        return answer.json()["detail"]
    whole = json.dumps(base(schema))
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx", "multipart/form-data; boundary=x"):
        refused(415, "unsupported_media_type", whole, kind)
    for data in ("[]", '"x"', "{", whole + "x", '{"a":1,"a":1}', '{"\\u0000":1}'):
        refused(400, "invalid_json", data)
    assert "no_such_field" in refused(400, "invalid_field", json.dumps({**base(schema), "no_such_field": 1}))
    refused(413, "too_large", "{" + " " * (17 << 20) + "}")


QUERIES = [pytest.param(method, path, parameters, id=f"{method} {path}") for method, path, _, parameters in OPERATIONS
           if path.startswith("/v1/")]
WRONG_QUERY = {"integer": ["x", "-1", "1.5", "", "9" * 30, "0x10", "+1", "%00"], "boolean": ["maybe", "", "2"],
               "number": ["x", "-1", "", "1e999", "nan"], "string": ["%00"]}


@pytest.mark.parametrize("method, path, parameters", QUERIES)
def test_every_parameter_is_checked(client, box, method, path, parameters):
    def refused(query, name):
        answer = call(client, box, method, path, [], query, **({"json": {}} if method in ("POST", "PATCH") else {}))
        assert answer.status_code == 400 and (name in answer.json()["detail"] or "%" in query), (query, answer.text)
    known = {p["name"]: schema_of(p["schema"]) for p in parameters if p["in"] == "query"}
    needed = "".join(f"{p['name']}=x&" for p in parameters if p["in"] == "query" and p.get("required"))
    refused(needed + "no_such_parameter=1", "no_such_parameter")
    for name, schema in known.items():
        others = "&".join(part for part in needed.split("&") if part and not part.startswith(name + "="))
        for value in WRONG_QUERY[types_of(schema)[0]] + (["no-such-word"] if "enum" in schema else []):
            if value == "-1" and schema.get("minimum", 0) < 0:
                continue
            refused(f"{others}&{name}={value}".lstrip("&"), name)
        refused(f"{others}&{name}=x&{name}=x".lstrip("&"), name)


def sandbox_routes():
    return [(method, path, parameters, operation) for method, path, operation, parameters in OPERATIONS if "{id}" in path]


def ask(client, box, method, path, parameters, operation):
    content = operation.get("requestBody", {}).get("content", {})
    body = {}
    if "application/json" in content:
        body = {"json": base(schema_of(content["application/json"]["schema"]))}
    elif content:
        body = {"data": b"x", "headers": {"Content-Type": "application/octet-stream"}}
    return call(client, box, method, path, parameters, **body)


KEPT = {("DELETE", "/v1/sandboxes/{id}"), ("GET", "/v1/sandboxes/{id}/events"), ("GET", "/v1/sandboxes/{id}/execs"),
        ("GET", "/v1/sandboxes/{id}/execs/{n}"), ("GET", "/v1/sandboxes/{id}/execs/{n}/output"),
        ("GET", "/v1/sandboxes/{id}/sessions"), ("GET", "/v1/sandboxes/{id}/sessions/{s}")}


@pytest.mark.parametrize("method, path, parameters, operation", [pytest.param(*route, id=f"{route[0]} {route[1]}")
                                                                for route in sandbox_routes()])
def test_unknown_is_404_and_removed_is_410(client, gone, method, path, parameters, operation):
    """But for what its tombstone keeps, and a removal, which is done."""
    answer = ask(client, "never-was", method, path, parameters, operation)
    assert answer.status_code == 404, answer.text
    answer = ask(client, gone, method, path, parameters, operation)
    if (method, path) in KEPT:
        assert answer.status_code in (200, 204), answer.text
    else:
        assert answer.status_code == 410, answer.text
        problem = answer.json()
        assert (problem["code"], problem["reason"], problem["sandbox"]["state"]) == ("gone", "deleted", "gone"), problem


@pytest.mark.parametrize("path", sorted(DOCUMENT["paths"]))
def test_a_wrong_method_is_405_and_the_right_ones_are_listed(client, box, path):
    has = {method.upper() for method in DOCUMENT["paths"][path] if method in METHODS}
    for method in {"GET", "PUT", "POST", "PATCH", "DELETE"} - has:
        problem = client.problem(method, target_of(path, box), 405, "method_not_allowed")
        allowed = set(re.split(r",\s*", problem["headers"]["Allow"]))
        assert allowed - {"HEAD"} == has, (method, problem["headers"]["Allow"])


def test_busy_is_503_with_the_time_to_wait(fresh):
    """As many sandboxes and commands as the operator allows; one more is told to wait, and leaves nothing behind."""
    server = fresh("--max-sandboxes", "2", "--max-execs", "3").start()
    client = server.client()

    def refused(path, body):
        problem = client.problem("POST", path, 503, "busy", json=body)
        assert int(problem["headers"]["Retry-After"]) >= 1 and problem["retryable"] and problem["category"] == "overloaded"
    for id in ("one", "two"):
        client.create(id)
    refused("/v1/sandboxes", {"id": "three"})
    client.problem("GET", "/v1/sandboxes/three", 404)
    assert server.api.get("pods", "sandbox-three") is None
    started = [client.start("one", ["cat"]) for _ in range(3)]
    refused("/v1/sandboxes/one/execs", {"cmd": ["true"]})
    assert client.exec("two", ["true"])["exit_code"] == 0  # another sandbox is not busy
    for record in started:
        client.request("PUT", f"/v1/sandboxes/one/execs/{record['id']}/stdin", 200, data=b"")
    wait_until(lambda: client.sandbox("one")["running_execs"] == 0)
    assert client.exec("one", ["true"])["exit_code"] == 0
    client.delete("two")
    assert client.create("three")["state"] == "running"


def test_nothing_half_created_is_left_behind(client, api, box):
    """After all of the above, in whatever order."""
    assert {item["id"] for item in client.list()} == {box}
    assert [pod["metadata"]["name"] for pod in api.all("pods", "podsandbox.dev/sandbox-id")] == ["sandbox-input"]
    for kind in ("services", "ingresses", "networkpolicies"):
        assert api.all(kind, "podsandbox.dev/sandbox-id") == []
    client.request("DELETE", f"/v1/sandboxes/{box}/sessions/{SESSION}", (200, 204))
    assert client.sandbox(box)["running_execs"] == 0 and client.get(f"/v1/sandboxes/{box}/previews")["items"] == []
