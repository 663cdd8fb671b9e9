"""What a driver says it can do, and that the README says the same."""

import re

import pytest
import yaml
from jsonschema import Draft202012Validator

from attaching import Attached
from events import stream
from server import ROOT


@pytest.fixture(scope="module")
def capabilities(cloud):
    return cloud.client().get("/v1/capabilities")


def test_capabilities_are_as_described(capabilities):
    document = yaml.safe_load((ROOT / "openapi.yaml").read_text())
    schema = {"$ref": "#/components/schemas/Capabilities", "components": document["components"]}
    assert [error.message for error in Draft202012Validator(schema).iter_errors(capabilities)] == []


def test_the_readme_lists_every_promise_of_the_driver(capabilities):
    """So each test that is skipped for a driver is explained there."""
    text = re.search(r"^\| promise \|.*\n\|[-|]+\n((?:\|.*\n)+)", (ROOT / "README.md").read_text(), re.M)
    head, *rows = [[cell.strip() for cell in line.strip("|").split("|")]
                   for line in (text[0].splitlines()[0], *text[1].splitlines())]
    column = head.index(capabilities["driver"])
    table = {row[0].strip("`"): row[column] for row in rows}
    assert table == {name: "yes" if kept else "no" for name, kept in capabilities["promises"].items()}


def test_what_is_not_promised_is_refused(client, promises):
    if not promises["runtime_classes"]:
        client.create_problem(422, "not_supported", runtime_class="gvisor")
    else:
        assert "nowhere" in client.create_problem(422, "runtime_class_missing", runtime_class="nowhere")["detail"]


def watch(client, at):
    response = client.request("GET", at + "/files/watch", (200, 422), stream=True)
    if response.status_code == 200:
        response.close()
    return response


def use_of_each_feature(client, box):
    """A request of each, or several."""
    at = f"/v1/sandboxes/{box}"

    def post(path, expect=None, **body):
        return client.request("POST", at + path, expect, json=body)

    def signal():
        number = post("/execs", 202, cmd=["sleep", "60"], detach=True).json()["id"]
        answer = post(f"/execs/{number}/signal", signal="KILL")
        return None if answer.status_code == 409 else answer  # one that has ended, where commands are made up

    return {
        "exec": lambda: post("/execs", cmd=["true"]),
        "stdin": lambda: post("/execs", cmd=["cat"], stdin="x"),
        "detach": lambda: post("/execs", 202, cmd=["true"], detach=True),
        "stream": lambda: stream(client, box, ["true"]).until("exit") and None,
        "signal": signal,
        "ps": lambda: client.request("GET", at + "/ps"),
        "files": lambda: client.request("PUT", client.file_url(box, "feature"), data=b"x"),
        "tree": lambda: client.request("GET", at + "/tree?path=."),
        "secrets": lambda: post("/secrets", values=["a-secret-of-features"]),
        "events": lambda: client.request("GET", at + "/events"),
        "idempotency": lambda: client.request("POST", at + "/execs", headers={"Idempotency-Key": "feature"}, json={"cmd": ["true"]}),
        "previews": lambda: post("/previews", port=8000, wait=False),
        "private_previews": lambda: post("/previews", port=8001, wait=False, visibility="private"),
        "tty": lambda: post("/execs", 202, cmd=["true"], tty=True),
        "network_policy": lambda: client.request("POST", "/v1/sandboxes", json={"image": client.image, "network": "only-this"}),
        "attach": lambda: Attached(client, box, post("/execs", 202, cmd=["true"], detach=True).json()["id"]).leave(),
        "archive": lambda: client.request("GET", at + "/archive?path=."),
        "watch": lambda: watch(client, at),
        "changes": lambda: client.request("GET", at + "/changes"),
        "sessions": lambda: post("/sessions"),
    }


def test_features_are_what_works(client, capabilities):
    client.create("features")
    uses = use_of_each_feature(client, "features")
    assert set(uses) == set(capabilities["features"])
    for name, have in capabilities["features"].items():
        answer = uses[name]()
        if have:
            assert answer is None or answer.status_code < 300, (name, answer.text)
        else:
            assert (answer.status_code, answer.json()["code"]) == (422, "not_supported"), (name, answer.text)
    client.delete("features")


def test_networks_are_those_that_work(client, capabilities):
    for network in capabilities["networks"]:
        client.create("networked", network=network)
        client.delete("networked")
    for network in {"internet", "none", "host", "else"} - set(capabilities["networks"]):
        client.create_problem(422, "not_supported", network=network)
