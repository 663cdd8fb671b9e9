"""openapi.yaml says what the route tables say, and is a valid document."""
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
METHODS = {"get", "put", "post", "patch", "delete"}
ROUTE = re.compile(r'\{"([A-Z]+)",\s*"(/[^"]*)",\s*\w+,\s*([^,]+),\s*(NULL|(?:"[^"]*"\s*)+)\}')


def routes():
    """(method, path) → the allowed query parameters, from the tables in server/api_*.c."""
    found = {}
    for source in sorted((ROOT / "server").glob("api_*.c")):
        for method, path, _, query in ROUTE.findall(source.read_text()):
            words = "" if query == "NULL" else "".join(re.findall(r'"([^"]*)"', query))
            assert (method, path) not in found, f"{method} {path} stands twice"
            found[method, path] = set(words.split())
    return found


@pytest.fixture(scope="module")
def document():
    return yaml.safe_load((ROOT / "openapi.yaml").read_text())


def resolve(document, node):
    while "$ref" in node:
        target = document
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        node = target
    return node


def operations(document):
    for path, item in document["paths"].items():
        for method in METHODS & item.keys():
            operation = item[method]
            parameters = [resolve(document, p) for p in
                          item.get("parameters", []) + operation.get("parameters", [])]
            yield method.upper(), path, operation, parameters


def test_every_route_is_described_and_nothing_else(document):
    tables = routes()
    assert len(tables) >= 28  # the pattern above still finds them
    assert {(m, p) for m, p, _, _ in operations(document)} == tables.keys()


def test_query_parameters_agree(document):
    tables = routes()
    for method, path, _, parameters in operations(document):
        named = {p["name"] for p in parameters if p["in"] == "query"}
        assert named == tables[method, path], f"{method} {path}"


def test_path_parameters_are_described(document):
    for method, path, _, parameters in operations(document):
        named = {p["name"] for p in parameters if p["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path)), f"{method} {path}"


def test_every_operation_may_fail_as_a_problem(document):
    for method, path, operation, _ in operations(document):
        assert operation["responses"]["default"] == {"$ref": "#/components/responses/Problem"}, f"{method} {path}"


def test_the_document_is_valid(document):
    from openapi_spec_validator import validate

    validate(document)


def test_examples_fit_their_schemas(document):
    from jsonschema import Draft202012Validator

    seen = 0
    for method, path, operation, _ in operations(document):
        bodies = [operation.get("requestBody", {})] + [resolve(document, r) for r in operation["responses"].values()]
        for body in bodies:
            for media in body.get("content", {}).values():
                schema = {**media.get("schema", {}), "components": document["components"]}
                for name, example in media.get("examples", {}).items():
                    errors = list(Draft202012Validator(schema).iter_errors(example["value"]))
                    assert not errors, f"{method} {path} {name}: {errors[0].message}"
                    seen += 1
    assert seen > 10


def test_every_error_code_has_its_problem():
    codes = set(re.findall(r"^X\((\w+),", (ROOT / "base/err_codes.h").read_text(), re.M))
    rows = set(re.findall(r"\bROW\(\s*(\w+),", (ROOT / "server/problem.c").read_text())) - {"code"}
    assert len(codes) > 60
    assert codes - rows <= {"NONE"}
    assert rows <= codes
