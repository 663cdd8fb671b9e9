"""GET …/ps: what runs in a sandbox, and who listens."""

import time

import pytest

from server import wait_until


@pytest.fixture(scope="module")
def box(cloud):
    cloud.client().create("ps", ttl=3600, secrets=["a-secret-value"])
    return "ps"


def ps(client, box):
    return client.get(f"/v1/sandboxes/{box}/ps")


def detach(client, box, cmd):
    return client.post(f"/v1/sandboxes/{box}/execs", {"cmd": cmd, "detach": True}, 202)["id"]


def named(client, box, word):
    return [one for one in ps(client, box)["processes"] if word in " ".join(one["cmd"])]


def test_nothing_runs(client, box):
    """Neither the agent nor the process that looks is shown."""
    assert ps(client, box) == {"processes": [], "ports": []}


def test_processes_and_whose_they_are(client, box):
    number = detach(client, box, ["sh", "-c", "sleep 651 & setsid sleep 652 & wait"])
    wait_until(lambda: {"sleep 651", "sleep 652"} <= {" ".join(one["cmd"]) for one in ps(client, box)["processes"]})
    processes = {" ".join(one["cmd"]): one for one in ps(client, box)["processes"]}
    shell = next(one for one in processes.values() if one["name"] == "sh")
    child, apart = processes["sleep 651"], processes["sleep 652"]
    assert {one["exec"] for one in processes.values()} == {number}
    assert shell["ppid"] is None and child["ppid"] == shell["pid"] and child["cmd"] == ["sleep", "651"]
    assert child["name"] == apart["name"] == "sleep" and child["state"] == "S" and not child["cmd_truncated"]
    assert child["rss"] > 0 and child["cpu_time"] >= 0
    assert abs(time.time() - time.mktime(time.strptime(child["started"][:19], "%Y-%m-%dT%H:%M:%S")) + time.timezone) < 60
    client.request("DELETE", f"/v1/sandboxes/{box}/execs/{number}", 204)
    assert ps(client, box)["processes"] == []


def test_what_an_ended_command_left_is_its_own(client, box):
    number = client.exec(box, ["sh", "-c", "sleep 653 & echo left"])["id"]
    assert [one["exec"] for one in named(client, box, "sleep 653")] == [number]
    client.request("DELETE", f"/v1/sandboxes/{box}/execs/{number}", 204)


def test_command_lines_are_masked_and_cut(client, box):
    one = detach(client, box, ["sh", "-c", "sleep 654; :", "a-secret-value"])
    wait_until(lambda: named(client, box, "sleep 654; "))
    assert named(client, box, "sleep 654; ")[0]["cmd"] == ["sh", "-c", "sleep 654; :", "***"]
    two = detach(client, box, ["sh", "-c", "sleep 655; :", "x" * 100000])
    wait_until(lambda: named(client, box, "sleep 655; "))
    long = named(client, box, "sleep 655; ")[0]
    assert long["cmd_truncated"] and sum(map(len, long["cmd"])) <= 4096
    cut = detach(client, box, ["sh", "-c", "sleep 659; :", "z" * 4060 + "a-secret-value"])  # 4 KiB end within it
    wait_until(lambda: named(client, box, "sleep 659; "))
    last = named(client, box, "sleep 659; ")[0]["cmd"][-1]
    assert last.startswith("zzzz") and "a" not in last
    many = detach(client, box, ["sh", "-c", "sleep 656; :", *["y"] * 1000])
    wait_until(lambda: named(client, box, "sleep 656; "))
    assert named(client, box, "sleep 656; ")[0]["cmd_truncated"]
    for number in (one, two, cut, many):
        client.request("DELETE", f"/v1/sandboxes/{box}/execs/{number}", 204)


LISTEN = """
import socket, time
one = socket.create_server(("127.0.0.1", 7001)); two = socket.create_server(("0.0.0.0", 7002))
three = socket.create_server(("::1", 7003), family=socket.AF_INET6); print("up", flush=True); time.sleep(600)
"""


def test_listening_ports(client, box):
    number = detach(client, box, ["python3", "-c", LISTEN])
    wait_until(lambda: client.get(f"/v1/sandboxes/{box}/execs/{number}")["stdout"] == "up\n")
    ports = {(one["address"], one["port"]) for one in ps(client, box)["ports"]}
    assert {("127.0.0.1", 7001), ("0.0.0.0", 7002), ("::1", 7003)} <= ports
    client.request("DELETE", f"/v1/sandboxes/{box}/execs/{number}", 204)
    assert not {port for _, port in {(one["address"], one["port"]) for one in ps(client, box)["ports"]}} & {7001, 7002, 7003}


def test_strange_names(client, box):
    """Parentheses, spaces and bytes that are no text, in names and arguments."""
    number = detach(client, box, ["sh", "-c", "cp $(command -v sleep) './a) S 1 (b'; exec './a) S 1 (b' 657"])
    wait_until(lambda: [one for one in ps(client, box)["processes"] if one["name"] == "a) S 1 (b"])
    client.request("DELETE", f"/v1/sandboxes/{box}/execs/{number}", 204)
    assert client.get(f"/v1/sandboxes/{box}/execs/{number}")["signal"] == "TERM"
    client.problem("GET", "/v1/sandboxes/nobody/ps", 404, "not_found")


def test_many_processes(client, box):
    number = detach(client, box, ["sh", "-c", "for i in $(seq 200); do sleep 658 & done; wait"])
    wait_until(lambda: len([one for one in ps(client, box)["processes"] if one["cmd"] == ["sleep", "658"]]) == 200)
    client.request("DELETE", f"/v1/sandboxes/{box}/execs/{number}", 204)
    assert ps(client, box)["processes"] == []
