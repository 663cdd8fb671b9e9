"""What a driver says it can do, and that the README says the same."""

import re

import pytest
import yaml
from jsonschema import Draft202012Validator

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
