"""The server dies and comes back, with its store or without (B49): executions go on, sandboxes are adopted."""

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from server import SERVER, SOAK, wait_until

OPTIONS = ("--reap-every", "1")


@pytest.fixture
def box(client):
    client.create("box", ttl=3000, labels={"team": "a"}, secrets=["hunter2-hunter2"], env={"A": "1"})
    yield "box"
    client.delete("box", expect=(202, 204))


def test_another_key_file_cannot_read_what_agents_keep(server, client, api):
    """Blob unreadable: reported as lost and left in place until its deadline, never touched by guesswork."""
    client.create("sealed")
    server.stop()
    server.forget()
    old = server.key_file.read_bytes()
    server.key_file.unlink()
    try:
        instance = api.get("pods", "sandbox-sealed")["metadata"]["labels"]["podsandbox.dev/instance"]
        server.options += ["--instance", instance]
        server.start()
        response = wait_until(lambda: (lambda r: r if r.status_code != 404 else None)(
            client.request("GET", "/v1/admin/sandboxes?state=failed")))
        wait_until(lambda: [item for item in client.get("/v1/admin/sandboxes?state=failed")["items"] if item["id"] == "sealed"])
        assert response and api.get("pods", "sandbox-sealed")
        client.exec_problem("sealed", ["true"], 410)
    finally:
        del server.options[-2:]
        server.stop()
        server.forget()
        server.key_file.write_bytes(old)
        os.chmod(server.key_file, 0o600)
        server.start()
    client.wait_state("sealed", "running")
    client.delete("sealed")


def test_another_key_on_the_store_is_refused(server, client):
    """Nothing of before would be found again: said at the start, before anything is made or removed."""
    client.create("mine")
    server.stop()
    old = server.key_file.read_bytes()
    server.key_file.unlink()
    try:
        done = subprocess.run(server.command(), capture_output=True, timeout=60, cwd=server.dir)
        assert done.returncode == 1 and b"was made with another key" in done.stderr, done
        assert str(server.key_file).encode() in done.stderr
    finally:
        server.key_file.write_bytes(old)
        os.chmod(server.key_file, 0o600)
        server.start()
    client.wait_state("mine", "running")
    client.delete("mine")


def test_a_store_without_its_outputs_says_so(server, client, box):
    """Restored from a copy of STORE alone: what was kept is omitted, a gap, a range that is not there; never an empty output."""
    client.exec(box, ["sh", "-c", "printf 'hello\\n'; printf oops >&2"])
    client.exec(box, ["true"])
    server.stop()
    shutil.rmtree(f"{server.store}.d")
    server.start()
    client.wait_state(box, "running")
    record = client.get(f"/v1/sandboxes/{box}/execs/1")
    assert record["exit_code"] == 0 and record["stdout"] == "" and record["truncated"], record
    assert record["stdout_bytes"] == 6 and record["stdout_omitted"] == {"offset": 0, "bytes": 6}
    assert record["stderr_bytes"] == 4 and record["stderr_omitted"] == {"offset": 0, "bytes": 4}
    for follow in ("", "&follow=true"):
        problem = client.problem("GET", f"/v1/sandboxes/{box}/execs/1/output?stream=stdout{follow}", 416, "range_not_satisfiable")
        assert "not there any more" in problem["detail"]
    events = [json.loads(line) for line in client.request(
        "GET", f"/v1/sandboxes/{box}/execs/1", 200, headers={"Accept": "application/x-ndjson"}).text.splitlines()]
    gaps = {event["stream"]: (event["from"], event["to"]) for event in events if event["type"] == "gap"}
    assert gaps == {"stdout": (0, 6), "stderr": (0, 4)} and events[-1]["type"] == "exit", events
    empty = client.get(f"/v1/sandboxes/{box}/execs/2")
    assert not empty["truncated"] and empty["stdout_omitted"] is None
    assert client.output(box, 2).content == b""


def test_raw_input_after_a_restart_is_refused_for_what_it_is(server, client, box):
    waiting = client.start(box, ["cat"])["id"]
    plain = client.start(box, ["sleep", "600"], stdin_encoding="utf-8", detach=True)["id"]
    server.restart()
    client.wait_state(box, "running")
    for number, why in ((waiting, "started again"), (plain, "not started with raw input")):
        problem = client.problem("PUT", f"/v1/sandboxes/{box}/execs/{number}/stdin", 409, "conflict", data=b"x")
        assert why in problem["detail"], problem
        client.request("DELETE", f"/v1/sandboxes/{box}/execs/{number}", (202, 204))


def test_two_servers_on_one_store(server):
    """The second refuses to start: the store is locked."""
    command = server.command()
    command[command.index("--listen") + 1] = "127.0.0.1:0"
    done = subprocess.run(command, capture_output=True, timeout=60, cwd=server.dir)
    assert done.returncode != 0 and b"store" in done.stderr


@pytest.mark.parametrize("round_", range(8))
def test_what_was_answered_is_recorded(server, client, api, round_):
    """Killed right after 201, and the pod is removed: gone, and not made anew behind the caller's back."""
    record = client.create("answered")
    server.kill()
    made = len(api.seen("create", "pods", "sandbox-answered"))
    api.remove("pods", "sandbox-answered")
    server.start()
    gone = client.wait_state("answered", "gone", 20)
    assert gone["uid"] == record["uid"] and gone["reason"] in ("removed_externally", "lost")
    assert len(api.seen("create", "pods", "sandbox-answered")) == made


def test_deleted_while_the_server_was_away(server, client, api, box):
    client.exec(box, ["true"])
    server.kill()
    api.remove("pods", "sandbox-box")
    server.start()
    assert client.wait_state(box, "gone")["reason"] in ("removed_externally", "lost")


def test_b49_killed_during_a_delete(server, client, api):
    client.create("dying")
    hold = api.hold(verb="delete", kind="pods")
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(client.delete, "dying")
        hold.wait()
        server.kill()
        hold.gate.open()
        with pytest.raises(requests.RequestException):
            lost.result()
    server.start()
    client.wait_state("dying", "gone")
    wait_until(lambda: api.get("pods", "sandbox-dying") is None)


def test_b49_killed_while_starting(server, client, api):
    """Before the agent has been configured: it becomes ready, or is failed and removed; never in between for good."""
    hold = api.hold(verb="exec", times=None, where=lambda call: call.name == "sandbox-young")
    client.create("young", expect=202, wait=False)
    hold.wait()
    server.kill()
    api.faults.clear()
    hold.gate.open()
    server.start()
    record = wait_until(lambda: (lambda r: r if r["state"] in ("running", "failed") else None)(client.sandbox("young")))
    if record["state"] == "running":
        assert client.exec("young", ["true"])["exit_code"] == 0
    client.delete("young")


def test_store_and_key_files_are_private(server):
    assert server.key_file.stat().st_mode & 0o077 == 0
    assert server.store.stat().st_mode & 0o077 == 0
    for path in server.dir.glob("store.db*"):
        if path.is_file():
            assert b"hunter2-hunter2" not in path.read_bytes(), path


@pytest.mark.parametrize("count", [200 if SOAK else 30])
def test_many_sandboxes_after_a_restart(fresh, count):
    server = fresh().start()
    client = server.client()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: client.create(f"n-{i}"), range(count)))
    server.kill()
    server.start()
    with ThreadPoolExecutor(8) as pool:
        wait_until(lambda: len(client.list("&state=running")) == count)
        results = list(pool.map(lambda i: client.exec(f"n-{i}", ["echo", str(i)]), range(count)))
    assert [result["stdout"] for result in results] == [f"{i}\n" for i in range(count)]


def test_version_and_help():
    for flag in ("--version", "--help"):
        done = subprocess.run([SERVER, flag], capture_output=True, timeout=30, text=True)
        assert done.returncode == 0 and "podsandboxd" in done.stdout
    done = subprocess.run([SERVER, "--no-such-flag"], capture_output=True, timeout=30, text=True)
    assert done.returncode != 0 and "no-such-flag" in done.stderr


@pytest.mark.parametrize("options, word", [(["--driver", "kubernetes"], "agent-image"), (["--driver", "nothing"], "nothing"),
                                           (["--agent-image", "x", "--tolerations", "{}"], "tolerations"),
                                           (["--agent-image", "x", "--node-selector", "x"], "node-selector")])
def test_settings_that_no_driver_takes_leave_nothing(tmp_path, options, word):
    done = subprocess.run([SERVER, "--store", tmp_path / "store", *options], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and word in done.stderr, done
    assert list(tmp_path.iterdir()) == []
