"""Each route of the API is asked with a secret in all that it could show. A new route needs an entry here."""

import base64
import itertools
import json
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from attaching import Attached
from events import TYPES
from server import path_query, wait_until
from test_contract import routes

SECRET = "sw0rdf1sh/of~Every where"
FORMS = (SECRET, base64.b64encode(SECRET.encode()).decode().rstrip("="), SECRET.encode().hex(), quote(SECRET, safe=""), quote(SECRET),
         json.dumps(SECRET)[1:-1], SECRET.replace("/", "\\/"))
NAME = SECRET.replace("/", "-")  # of a file
LABEL = "sw0rdf1sh-of-every-label"
BOX = "/v1/sandboxes/{id}"
EXEC = BOX + "/execs/{n}"
NUMBERS = itertools.count()
pytestmark = pytest.mark.needs("programs")


@pytest.fixture(scope="module")
def place(cloud, promises):
    """A sandbox whose record, commands, files, preview and events have the secret wherever a caller or a program can put it."""
    if not promises["programs"]:
        pytest.skip("no programs here")
    client = cloud.client()
    id = client.create(ttl=3600, secrets=[SECRET, NAME, LABEL], env={"TOKEN": SECRET}, labels={"note": LABEL})["id"]
    client.put(id, f"data/{NAME}", SECRET.encode() + b"\n")
    said = 'echo "$0"; echo "$0" >&2; printf %s "$0" | base64; printf %s "$TOKEN"'
    done = client.exec(id, ["sh", "-c", said, SECRET], env={"ALSO": SECRET})
    assert done["stdout"].startswith("***\n")
    held = client.start(id, ["sh", "-c", f"{said}; cat > /dev/null; :", SECRET], stdin_encoding="raw", timeout=1800)["id"]
    wait_until(lambda: client.get(f"/v1/sandboxes/{id}/execs/{held}")["stdout_bytes"] >= len(SECRET), what="its output")
    yield SimpleNamespace(id=id, n=done["id"], held=held, port=8123)
    client.delete(id, expect=(202, 204))


def fill(path, place, **more):
    names = {"id": place.id, "n": place.n, "port": place.port, **more}
    for name, value in names.items():
        path = path.replace("{" + name + "}", str(value))
    return path


def said(response):
    """All that a client gets to see."""
    return (response.status_code, "\n".join(f"{k}: {v}" for k, v in response.headers.items()).encode() + b"\n\n" + response.content)


def ask(method, path, query="", want=None, **options):
    """WANT: text that shows that the secret was there."""
    def one(client, place):
        response = client.request(method, fill(path, place) + query, **options)
        status, shown = said(response)
        assert status < 500, shown
        if want:
            assert want.encode() in shown, shown
        yield shown
    return one


def attach(client, place):
    with Attached(client, place.id, place.held) as seen:
        seen.shows("*" * 8)
        yield bytes(seen.out) + bytes(seen.err) + json.dumps(seen.messages).encode()
    yield said(client.request("GET", fill(EXEC + "/attach", place)))[1]


def run(client, place):
    """As a record, and as both kinds of streams."""
    body = {"cmd": ["sh", "-c", 'echo "$0"; echo "$ALSO" >&2', SECRET], "env": {"ALSO": SECRET}}
    for accept in ("application/json", *TYPES.values()):
        key = {"Idempotency-Key": f"same-{next(NUMBERS)}", "Accept": accept}
        first, again = (client.request("POST", fill(BOX + "/execs", place), 200, json=body, headers=key) for _ in range(2))
        assert b"***" in first.content
        yield from (said(first)[1], said(again)[1])
    for body in ({"cmd": [f"/no/{SECRET}"]}, {"cmd": ["true"], "workdir": f"/no/{SECRET}"}):
        yield said(client.request("POST", fill(BOX + "/execs", place), (200, 422), json=body))[1]


def create_again(client, place):
    """The second answer with one key, and the same id once more."""
    key = f"everywhere-{next(NUMBERS)}"
    body = {"image": client.image, "secrets": [SECRET], "env": {"TOKEN": SECRET}, "labels": {"a": "b"}}
    first, again = (client.request("POST", "/v1/sandboxes", (200, 201), json=body, headers={"Idempotency-Key": key}) for _ in range(2))
    id = first.json()["id"]
    taken = client.request("POST", "/v1/sandboxes", 409, json={**body, "id": id})
    client.delete(id, expect=(202, 204))
    yield from (said(answer)[1] for answer in (first, again, taken, client.request("GET", f"/v1/sandboxes/{id}", (200, 410))))


def publish(client, place):
    command = ["sh", "-c", 'echo "$0"; echo "$TOKEN" >&2; exec python3 -m http.server 8123 --bind 0.0.0.0', SECRET]
    response = client.request("POST", fill(BOX + "/previews", place), json={"port": place.port, "command": command, "wait": False})
    yield said(response)[1]
    log = fill(BOX + "/previews/{port}/log", place)
    wait_until(lambda: client.request("GET", log).content.count(b"***") + client.request("GET", log).content.count(b"*" * len(SECRET)) > 0,
               what="the log of the preview")
    yield said(client.request("GET", log))[1]
    yield said(client.request("GET", fill(BOX + "/previews", place)))[1]


def events(client, place):
    """Of a sandbox that ends, so that the stream does."""
    id = client.create(secrets=[SECRET], env={"TOKEN": SECRET})["id"]
    client.delete(id)
    for accept in ("application/json", *TYPES.values()):
        yield said(client.request("GET", fill(BOX + "/events", place, id=id), 200, headers={"Accept": accept}))[1]


def end_of_one(client, place):
    n = client.start(place.id, ["sleep", "600", SECRET])["id"]
    yield said(client.request("POST", fill(EXEC + "/signal", place, n=n), json={"signal": "TERM"}))[1]
    yield said(client.request("DELETE", fill(EXEC, place, n=n)))[1]
    yield said(client.request("GET", fill(EXEC, place, n=n)))[1]


def sessions(client, place):
    """One whose runs show the secret in every way, and what the routes say of it."""
    at = fill(BOX + "/sessions", place)
    made = client.request("POST", at, 201, json={"env": {"ALSO": SECRET}})
    yield said(made)[1]
    session = f"{at}/{made.json()['id']}"
    text = f"cd /; echo '{SECRET}'; echo \"$ALSO\" >&2"
    for accept in ("application/json", *TYPES.values()):
        shown = said(client.request("POST", f"{session}/runs", 200, json={"command": text}, headers={"Accept": accept}))[1]
        assert b"***" in shown
        yield shown
    yield from (said(client.request("GET", path, 200))[1] for path in (at, session))
    yield said(client.request("DELETE", session, (200, 204)))[1]
    yield said(client.request("POST", at, 422, json={"shell": f"/no/{NAME}/sh"}))[1]


def watch(client, place):
    response = client.request("GET", fill(BOX + "/files/watch?path=data", place), 200, stream=True)
    client.put(place.id, f"data/new-{NAME}", SECRET.encode())
    for line in response.iter_lines(chunk_size=1):
        yield line
        if b"***" in line:
            break
    response.close()
    yield said(client.request("GET", fill(BOX + "/files/watch", place) + MISSING))[1]


def changes(client, place):
    at = fill(BOX + "/changes", place)
    token = client.get(at)["token"]
    client.put(place.id, f"data/changed-{NAME}", SECRET.encode())
    shown = said(client.request("GET", f"{at}?since={token}", 200))[1]
    assert b"***" in shown
    yield shown


FILE = "?" + path_query(f"data/{NAME}")
MISSING = "?" + path_query(f"no/{NAME}")
OWN = "what it shows is of no sandbox"
FAKE = "documented in the README: it tells what was asked, unmasked"
ASKS = {
    ("POST", "/v1/sandboxes"): [create_again],
    ("GET", "/v1/sandboxes"): [ask("GET", "/v1/sandboxes", "?limit=500", want="***")],
    ("GET", BOX): [ask("GET", BOX, want="***")],
    ("PATCH", BOX): [ask("PATCH", BOX, json={"labels": {"note": LABEL}}, want="***")],
    ("DELETE", BOX): [create_again],
    ("POST", BOX + "/secrets"): [ask("POST", BOX + "/secrets", json={"values": [SECRET]})],
    ("GET", BOX + "/events"): [ask("GET", BOX + "/events"), events],
    ("POST", BOX + "/execs"): [run],
    ("GET", BOX + "/execs"): [ask("GET", BOX + "/execs", want="***")],
    ("GET", EXEC): [ask("GET", EXEC, want="***"), ask("GET", EXEC, headers={"Accept": TYPES["sse"]}, want="***")],
    ("DELETE", EXEC): [end_of_one],
    ("POST", EXEC + "/signal"): [end_of_one],
    ("GET", EXEC + "/attach"): [attach],
    ("POST", EXEC + "/resize"): [ask("POST", EXEC + "/resize", json={"rows": 3, "cols": 9})],
    ("PUT", EXEC + "/stdin"): [ask("PUT", EXEC + "/stdin", data=SECRET.encode())],
    ("GET", EXEC + "/output"): [ask("GET", EXEC + "/output", f"?stream={stream}{more}", want="*" * len(SECRET))
                                for stream in ("stdout", "stderr") for more in ("", "&follow=true")],
    ("GET", BOX + "/ps"): [ask("GET", BOX + "/ps", want="***")],
    ("GET", BOX + "/files"): [ask("GET", BOX + "/files", FILE, want="*" * len(SECRET)), ask("GET", BOX + "/files", MISSING, want="***"),
                              ask("GET", BOX + "/files", FILE, headers={"Accept": "application/json"}, want="***")],
    ("PUT", BOX + "/files"): [ask("PUT", BOX + "/files", "?" + path_query(f"data/{NAME}/below"), data=b"x", want="***"),
                              ask("PUT", BOX + "/files", FILE, data=SECRET.encode() + b"\n")],
    ("PATCH", BOX + "/files"): [ask("PATCH", BOX + "/files", MISSING, json={"to": f"data/{NAME}2"}, want="***")],
    ("DELETE", BOX + "/files"): [ask("DELETE", BOX + "/files", MISSING, want="***")],
    ("GET", BOX + "/tree"): [ask("GET", BOX + "/tree", "?path=data", want="***"), ask("GET", BOX + "/tree", "?path=data&format=paths", want="***"),
                             ask("GET", BOX + "/tree", MISSING, want="***")],
    ("GET", BOX + "/archive"): [ask("GET", BOX + "/archive", "?path=data", want="*" * len(SECRET)), ask("GET", BOX + "/archive", MISSING, want="***")],
    ("PUT", BOX + "/archive"): [ask("PUT", BOX + "/archive", FILE, data=b"no archive")],
    ("GET", BOX + "/files/watch"): [watch],
    ("GET", BOX + "/changes"): [changes, ask("GET", BOX + "/changes", MISSING)],
    ("POST", BOX + "/sessions"): [sessions],
    ("GET", BOX + "/sessions"): [sessions],
    ("GET", BOX + "/sessions/{s}"): [sessions],
    ("DELETE", BOX + "/sessions/{s}"): [sessions],
    ("POST", BOX + "/sessions/{s}/runs"): [sessions],
    ("POST", BOX + "/previews"): [publish],
    ("GET", BOX + "/previews"): [publish],
    ("GET", BOX + "/previews/{port}/log"): [publish],
    ("DELETE", BOX + "/previews/{port}"): [ask("DELETE", BOX + "/previews/{port}")],
    ("POST", BOX + "/previews/{port}/links"): [ask("POST", BOX + "/previews/{port}/links", json={"ttl": 60})],
    ("DELETE", BOX + "/previews/{port}/links"): [ask("DELETE", BOX + "/previews/{port}/links")],
    ("GET", "/v1/admin/sandboxes"): [ask("GET", "/v1/admin/sandboxes", want="***")],
    ("GET", "/v1/admin/stats"): [ask("GET", "/v1/admin/stats")],
    ("POST", "/v1/admin/reap"): [ask("POST", "/v1/admin/reap")],
    ("GET", "/metrics"): [ask("GET", "/metrics")],
    **{(method, f"/v1/fake/{name}"): FAKE for name in ("replies", "creates", "files", "ids", "calls") for method in ("GET", "PUT", "DELETE")},
    **{("GET", path): OWN for path in ("/v1/capabilities", "/v1/version", "/healthz", "/readyz", "/", "/page/{file}", "/openapi.yaml")},
}


@pytest.mark.parametrize("route", sorted(routes()), ids=" ".join)
def test_no_route_shows_a_secret(client, place, route):
    assert route in ASKS, "a route that is not asked here: add what could be shown by it"
    for asking in ASKS[route] if isinstance(ASKS[route], list) else ():
        for shown in asking(client, place):
            for form in (*FORMS, NAME, LABEL, quote(NAME)):
                assert form.encode() not in shown, (route, form, shown[:4000])
