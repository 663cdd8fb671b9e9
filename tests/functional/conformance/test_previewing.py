"""Previews as a client sees them: B54, B58."""

import pytest

from server import wait_until

reachable = pytest.mark.needs("programs", "previews")
SERVE = ["python3", "-m", "http.server", "8000"]


@pytest.fixture
def web(client):
    client.create("web")
    yield "web"
    client.delete("web", expect=(202, 204))


def previews(client, box):
    return client.get(f"/v1/sandboxes/{box}/previews")["items"]


def test_made_listed_and_deleted(client, web):
    made = client.preview(web, command=SERVE)
    assert made["host"].startswith("web.") and made["url"].startswith(f"http://{made['host']}")
    assert made["state"] == "ready" and made["port"] == 8000 and made["visibility"] == "public"
    assert [(item["port"], item["url"]) for item in previews(client, web)] == [(8000, made["url"])]
    client.request("DELETE", f"/v1/sandboxes/{web}/previews/8000", 204)
    assert previews(client, web) == []
    client.problem("DELETE", f"/v1/sandboxes/{web}/previews/8000", 404)


@reachable
def test_what_a_browser_gets(server, client, web):
    client.put(web, "hi.txt", "grüße\n".encode())
    made = client.preview(web, command=SERVE)
    assert server.fetch(web, made, "/hi.txt") == (200, "grüße\n")
    client.put(web, "hi.txt", b"changed\n")
    assert server.fetch(web, made, "/hi.txt") == (200, "changed\n")


@reachable
def test_a_port_on_loopback_only_is_reached(server, client, web):
    client.put(web, "hi.txt", b"hi\n")
    made = client.preview(web, command=[*SERVE, "--bind", "127.0.0.1"])
    assert made["state"] == "ready"
    assert server.fetch(web, made, "/hi.txt") == (200, "hi\n")


def test_further_ports_and_a_subdomain(client, web):
    first = client.preview(web, command=SERVE, subdomain="shop")
    second = client.preview(web, port=8001, command=["python3", "-m", "http.server", "8001"])
    assert first["host"].startswith("shop.") and second["host"].startswith("8001-web.")
    assert sorted(item["port"] for item in previews(client, web)) == [8000, 8001]


def test_hosts_are_taken_once(client, web):
    client.preview(web, command=SERVE, subdomain="one-host")
    client.create("other")
    problem = client.problem("POST", "/v1/sandboxes/other/previews", 409, "host_taken", json={"port": 8000, "subdomain": "one-host"})
    assert "one-host" in problem["detail"]
    client.problem("POST", "/v1/sandboxes/other/previews", 409, "host_taken", json={"port": 8000, "subdomain": "web"})
    assert previews(client, "other") == []
    client.delete("other")


@reachable
def test_the_same_port_again_replaces_it(client, web):
    first = client.preview(web, command=["sh", "-c", "exec python3 -m http.server 8000 --directory /tmp"])
    second = client.preview(web, command=SERVE)
    assert second["exec"] != first["exec"] and second["state"] == "ready"
    assert client.get(f"/v1/sandboxes/{web}/execs/{first['exec']}")["state"] == "exited"
    without = client.preview(web, wait=False)
    assert without["exec"] is None and without["state"] == "starting"
    assert client.get(f"/v1/sandboxes/{web}/execs/{second['exec']}")["state"] == "exited"
    assert len(previews(client, web)) == 1


@reachable
def test_a_command_that_ends_is_a_service_error(client, web):
    problem = client.problem("POST", f"/v1/sandboxes/{web}/previews", 502, "service_failed",
                             json={"port": 8000, "command": ["sh", "-c", "echo cannot bind >&2; exit 5"]})
    assert problem["category"] == "service_error" and "Its output ends with: cannot bind" in problem["detail"], problem
    silent = client.problem("POST", f"/v1/sandboxes/{web}/previews", 502, "service_failed", json={"port": 8000, "command": ["false"]})
    assert "It wrote nothing" in silent["detail"] and "ends with" not in silent["detail"]
    assert previews(client, web) == []


@reachable
def test_its_command_ends_with_it(client, web):
    made = client.preview(web, command=SERVE, env={"X": "1 2"})
    client.request("DELETE", f"/v1/sandboxes/{web}/previews/8000", 204)
    assert wait_until(lambda: client.get(f"/v1/sandboxes/{web}/execs/{made['exec']}")["state"] == "exited")


@reachable
def test_log_of_a_preview(client, web):
    client.preview(web, command=["sh", "-c", "echo $GREETING from the app; exec python3 -u -m http.server 8000"],
            env={"GREETING": "hello"})
    assert "hello from the app" in client.request("GET", f"/v1/sandboxes/{web}/previews/8000/log", 200).text


@reachable
def test_without_a_command(client, web):
    client.exec(web, "python3 -m http.server 8000 >/dev/null 2>&1 &")
    assert client.preview(web)["state"] == "ready"


@reachable
def test_without_waiting(client, web):
    made = client.preview(web, expect=(201, 202), command=["sh", "-c", "sleep 0.5; exec python3 -m http.server 8000"], wait=False)
    assert made["state"] == "starting"
    wait_until(lambda: previews(client, web)[0]["state"] == "ready")


@pytest.mark.parametrize("body", [
    {"port": 0}, {"port": 65536}, {"port": -1}, {"port": "80"}, {"port": 80.5}, {"port": None}, {},
    *({"port": 8000, "subdomain": name} for name in (
        '"; } location /x { #', "a\nb", "${x}", "*", "(a|b)", "..", "a.b", "x" * 10240, "x" * 64, "Upper", "under_score", "-a", "a-", "",
        "xn--a", "8000-web", "api", "www", "日本")),
    {"port": 8000, "annotations": {"a": "b"}}, {"port": 8000, "host": "evil"}, {"port": 8000, "path": "/x"},
    {"port": 8000, "command": "ls"}, {"port": 8000, "command": []}, {"port": 8000, "env": {"A B": "1"}},
])
def test_b54_b58_refused(client, box, body):
    client.problem("POST", f"/v1/sandboxes/{box}/previews", 400, json=body)
    assert previews(client, box) == []


@pytest.mark.needs("programs", "previews", "adoption")
def test_previews_survive_a_restart(server, client, web):
    survives(server, client, web, empty_store=False)


@pytest.mark.needs("programs", "previews", "adoption")
def test_previews_survive_the_loss_of_the_store(server, client, web):
    """Those that the substrate publishes: it knows them, too."""
    if client.preview(web, command=SERVE)["service"] is None:
        pytest.skip("the server's own proxy knows previews from the store alone, README says")
    survives(server, client, web, empty_store=True)


def survives(server, client, web, empty_store):
    client.put(web, "hi.txt", b"hi\n")
    made = client.preview(web, command=SERVE, subdomain="stays")
    server.restart(empty_store=empty_store)
    client.wait_state(web, "running")
    items = wait_until(lambda: previews(client, web))
    assert [(item["url"], item["port"]) for item in items] == [(made["url"], 8000)]
    assert server.fetch(web, made, "/hi.txt") == (200, "hi\n")


def test_it_goes_with_its_sandbox(client):
    client.create("leaving")
    client.preview("leaving", command=SERVE, subdomain="set-free")
    client.delete("leaving")
    client.create("next")
    assert client.preview("next", command=SERVE, subdomain="set-free")["state"] == "ready"
    client.delete("next")
