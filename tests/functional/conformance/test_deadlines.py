"""A sandbox past its ttl is gone, whoever was up; a renewed one lives. B18."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from server import SLOW, SOAK, wait_until


def renew(client, id, ttl, expect=200):
    return client.request("PATCH", f"/v1/sandboxes/{id}", expect, json={"ttl": ttl})


def test_past_its_ttl(client):
    client.create("brief")
    renew(client, "brief", 1)
    assert client.wait_state("brief", "gone")["reason"] == "ttl"
    problem = client.problem("GET", "/v1/sandboxes/brief", 410, "gone")
    assert "ttl" in problem["detail"] and problem["reason"] == "ttl"
    client.create("brief")  # the id is free
    client.delete("brief")


@pytest.mark.needs("programs")
def test_a_running_command_does_not_hold_it(client):
    client.create("held")
    started = client.start("held", ["sleep", "600"])
    renew(client, "held", 1)
    result = client.exec_wait("held", started["id"])
    assert result["exit_code"] is None and result["error"]["code"] == "sandbox_gone"
    assert client.wait_state("held", "gone")["reason"] == "ttl"


def test_a_renewed_one_lives(client):
    client.create("renewed")
    before = renew(client, "renewed", 1.5).json()
    after = renew(client, "renewed", 1800).json()
    assert after["expires"] > before["expires"] and (before["ttl"], after["ttl"]) == (1.5, 1800)
    assert client.sandbox("renewed")["ttl"] == 1800
    time.sleep(2.5)  # what must not happen has no event
    assert client.exec("renewed", ["true"])["exit_code"] == 0
    client.delete("renewed")


@pytest.mark.needs("programs")
def test_a_busy_one_is_renewed(client):
    client.create("busy-one")
    started = client.start("busy-one", "sleep 4; echo done")
    for _ in range(2):
        renew(client, "busy-one", 3)
        time.sleep(1.5)
    renew(client, "busy-one", 60)
    assert client.exec_wait("busy-one", started["id"])["stdout"] == "done\n"
    client.delete("busy-one")


@pytest.mark.needs("adoption")
def test_past_its_ttl_while_the_server_was_down(server, client):
    client.create("down")
    client.create("longer")
    renew(client, "down", 2)
    kept = renew(client, "longer", 3000).json()
    server.kill()
    time.sleep(2.5)
    server.start()
    assert client.wait_state("down", "gone")["reason"] == "ttl"
    longer = client.wait_state("longer", "running")
    assert longer["expires"][:16] == kept["expires"][:16]
    assert client.exec("longer", ["true"])["exit_code"] == 0
    client.delete("longer")


@pytest.mark.needs("adoption")
def test_without_its_store_it_still_ends(server, client):
    client.create("forgotten")
    record = renew(client, "forgotten", 40 if SLOW else 5).json()  # valgrind takes its time to start a server
    server.kill()
    server.forget()
    server.start()
    assert client.wait_state("forgotten", "running")["expires"][:18] == record["expires"][:18]
    assert client.wait_state("forgotten", "gone")["reason"] == "ttl"


def test_b18_renewed_in_its_last_50_milliseconds(client):
    """It lives, or answers `gone`; never both, and never neither."""
    rounds, ttl = 200 if SOAK else 8, 2

    def one(number):
        id = f"edge-{number}"
        client.create(id)
        record = renew(client, id, ttl).json()
        time.sleep(ttl - 0.06 + 0.1 * number / rounds)
        answer = renew(client, id, 120, (200, 410))
        if answer.status_code == 200:
            assert answer.json()["expires"] > record["expires"]
            time.sleep(1.5)
            assert client.exec(id, ["true"])["exit_code"] == 0
            client.delete(id)
            return "lives"
        assert client.wait_state(id, "gone")["reason"] == "ttl"
        return "gone"
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(one, range(rounds)))
    assert set(outcomes) <= {"lives", "gone"} and len(outcomes) == rounds


def test_a_ttl_in_a_create(client):
    client.create("born", ttl=3)
    assert wait_until(lambda: client.request("GET", "/v1/sandboxes/born").status_code == 410)
    assert client.wait_state("born", "gone")["reason"] == "ttl"
