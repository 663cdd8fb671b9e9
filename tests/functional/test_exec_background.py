"""Commands that nobody waits for: detach, Prefer, Idempotency-Key, signals, the end of them. B07, B08, B09, B17, B35 on these paths."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from events import TYPES, follow, joined, stream
from server import wait_until


@pytest.fixture(scope="module")
def box(cloud):
    cloud.client().create("background", ttl=3600)
    return "background"


def url(box, number=None, more=""):
    return f"/v1/sandboxes/{box}/execs" + (f"/{number}{more}" if number else "")


def post(client, box, cmd, expect, headers=None, **body):
    cmd = ["sh", "-c", cmd] if isinstance(cmd, str) else cmd
    return client.request("POST", url(box), expect, json={"cmd": cmd, **body}, headers=headers)


def until_file(name):
    return f"while [ ! -e {name} ]; do sleep 0.02; done"


def count(api, box, command):
    """Of those that are it; a shell whose script names it has not come to it yet."""
    return len([line for line in api.node.container(box).processes() if " ".join(line).startswith(command)])


# --- detach -------------------------------------------------------------------------------------------------------------
def test_detach_answers_at_once(client, api, box):
    response = post(client, box, f"echo begun; {until_file('d1')}; echo done; exit 5", 202, detach=True)
    record = response.json()
    assert response.headers["Location"] == url(box, record["id"])
    assert record["state"] == "running" and record["exit_code"] is None and record["timeout"] is None
    assert record["on_disconnect"] == "keep"
    late = client.get(response.headers["Location"] + "?wait=0.2")
    assert late["state"] == "running"
    client.put(box, "d1", b"")
    ended = client.get(response.headers["Location"] + "?wait=30")
    assert ended["exit_code"] == 5 and ended["stdout"] == "begun\ndone\n"
    assert joined(list(follow(client, box, record["id"]))) == b"begun\ndone\n"


def test_detach_says_what_it_cannot_start(client, box):
    """The answer comes before the command: its record tells."""
    record = post(client, box, ["true"], 202, detach=True, workdir="/no/such").json()
    assert client.exec_wait(box, record["id"])["error"]["code"] == "workdir_not_found"
    client.problem("POST", url(box), 400, "invalid_field", json={"cmd": ["true"], "detach": True}, headers={"Accept": TYPES["sse"]})
    client.problem("POST", url(box), 400, "invalid_field", json={"cmd": ["true"], "detach": 1})


def test_detach_with_a_timeout_and_with_kill(client, api, box):
    record = post(client, box, ["sleep", "611"], 202, detach=True, timeout=0.3).json()
    assert client.exec_wait(box, record["id"])["timed_out"]
    post(client, box, ["sleep", "612"], 202, detach=True, on_disconnect="kill", disconnect_grace=0.2)
    wait_until(lambda: not count(api, box, "sleep 612"), what="the death of what nobody came back for")


# --- Prefer: wait -------------------------------------------------------------------------------------------------------
def test_prefer_wait_in_time(client, box):
    response = post(client, box, "exit 3", 200, {"Prefer": "wait=20"})
    assert response.headers["Preference-Applied"] == "wait=20" and response.json()["exit_code"] == 3


@pytest.mark.parametrize("prefer", ["wait=1", "respond-async, wait=1", "foo; bar=1, WAIT=1"])
def test_prefer_wait_too_short(client, box, prefer):
    """202 and a Location; it lives on although its client went, and gives its result there."""
    response = post(client, box, "echo partial; sleep 2; echo rest", 202, {"Prefer": prefer}, disconnect_grace=0)
    assert response.headers["Preference-Applied"] == "wait=1"
    record = response.json()
    assert record["state"] == "running" and record["stdout"] == "partial\n" and record["on_disconnect"] == "keep"
    assert client.get(response.headers["Location"] + "?wait=30")["stdout"] == "partial\nrest\n"


@pytest.mark.parametrize("prefer", ["wait=", "wait=-1", "wait=1.5", "wait=99999999999999999999", "respond-async", ""])
def test_prefer_that_is_none(client, box, prefer):
    response = post(client, box, "sleep 0.1; exit 3", 200, {"Prefer": prefer})
    assert "Preference-Applied" not in response.headers and response.json()["exit_code"] == 3


# --- Idempotency-Key ----------------------------------------------------------------------------------------------------
def test_b17_the_same_key_joins(client, box):
    """While it runs, buffered and streamed; when it has ended; with a server between."""
    key = {"Idempotency-Key": "exec-1"}
    command = f"echo once >>k1; {until_file('k1-go')}; cat k1; exit 4"
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(post, client, box, command, 200, key) for _ in range(3)]
        wait_until(lambda: client.request("HEAD", client.file_url(box, "k1")).status_code == 200)
        events = stream(client, box, command, headers=key)
        events.until("started")
        client.put(box, "k1-go", b"")
        records = [answer.result().json() for answer in answers]
    assert {record["id"] for record in records} == {events.items[0]["exec"]}
    assert {(record["stdout"], record["exit_code"]) for record in records} == {("once\n", 4)}
    assert joined(events.all()) == b"once\n"
    assert post(client, box, command, 200, key).json() == records[0]
    again = stream(client, box, command, headers=key)
    assert joined(again.all()) == b"once\n" and again.items[-1]["result"]["id"] == records[0]["id"]
    assert client.read(box, "k1") == b"once\n"


def test_b17_another_body_is_a_conflict(client, box):
    key = {"Idempotency-Key": "exec-2"}
    first = post(client, box, ["true"], 200, key).json()
    client.problem("POST", url(box), 409, "idempotency_conflict", json={"cmd": ["false"]}, headers=key)
    client.problem("POST", url(box), 400, "invalid_request", json={"cmd": ["true"]}, headers={"Idempotency-Key": "x" * 256})
    assert post(client, box, ["true"], 200, {"Idempotency-Key": "exec-3"}).json()["id"] > first["id"]


def test_a_key_is_of_one_life_of_one_sandbox(client, box):
    key = {"Idempotency-Key": "exec-4"}
    first = post(client, box, "date +%N", 200, key).json()
    client.create("other")
    assert post(client, "other", "echo other", 200, key).json()["stdout"] == "other\n"
    client.delete("other")
    client.create("other")
    assert post(client, "other", "echo new", 200, key).json()["stdout"] == "new\n"
    client.delete("other")
    assert post(client, box, "date +%N", 200, key).json() == first


def test_what_could_not_run_does_not_hold_its_key(client, box):
    key = {"Idempotency-Key": "exec-5"}
    body = {"cmd": ["pwd"], "workdir": "later"}
    for _ in range(2):
        client.problem("POST", url(box), 422, "workdir_not_found", json=body, headers=key)
    client.exec(box, ["mkdir", "later"])
    assert client.request("POST", url(box), 200, json=body, headers=key).json()["stdout"].endswith("/later\n")


def test_the_same_key_with_detach_and_raw_input(client, box):
    key = {"Idempotency-Key": "exec-6"}
    first = post(client, box, ["cat"], 202, key, stdin_encoding="raw").json()
    assert post(client, box, ["cat"], 202, key, stdin_encoding="raw").json()["id"] == first["id"]
    client.request("PUT", url(box, first["id"], "/stdin"), 200, data=b"input")
    assert client.exec_wait(box, first["id"])["stdout"] == "input"
    assert post(client, box, ["cat"], 202, key, stdin_encoding="raw").json()["stdout"] == "input"


def test_b17_the_same_key_after_a_restart(fresh):
    """A killed server: the retry finds the command that its first try has started, and waits for it."""
    server = fresh()
    client = server.start().client()
    client.create("kept")
    key = {"Idempotency-Key": "exec-7"}
    command = f"echo once >>k7; {until_file('k7-go')}; cat k7"
    thread = threading.Thread(target=lambda: pytest.raises(Exception, post, client, "kept", command, 200, key))
    thread.start()
    wait_until(lambda: client.request("HEAD", client.file_url("kept", "k7")).status_code == 200)
    server.kill()
    thread.join()
    server.start()
    wait_until(lambda: client.request("PUT", client.file_url("kept", "k7-go"), data=b"").status_code in (201, 204))
    assert post(client, "kept", command, 200, key).json()["stdout"] == "once\n"


# --- signals and the end ------------------------------------------------------------------------------------------------
def begin(client, api, box, cmd, *words, **body):
    """A detached command that is seen alive, with all that it starts."""
    number = post(client, box, cmd, 202, detach=True, **body).json()["id"]
    for word in words:
        wait_until(lambda word=word: count(api, box, word), what=f"{word} alive")
    return number


def signal(client, box, number, name, status=204, **body):
    return client.request("POST", url(box, number, "/signal"), status, json={"signal": name, **body})


@pytest.mark.parametrize("name", ["USR1", "SIGUSR1", "INT", "HUP"])
def test_a_signal_to_the_process(client, api, box, name):
    word = f"sleep 62{len(name)}"
    number = begin(client, api, box, f"trap 'echo got; exit 9' {name.removeprefix('SIG')}; {word} & wait", word)  # after the trap
    signal(client, box, number, name)
    record = client.exec_wait(box, number)
    assert record["stdout"] == "got\n" and record["exit_code"] == 9
    assert count(api, box, word)  # what it has started was not meant
    client.request("DELETE", url(box, number), 204)
    assert not count(api, box, word)


def test_a_signal_to_the_tree(client, api, box):
    inner = "trap 'echo two >>got; exit' USR1; echo ready; while :; do sleep 0.05; done"
    script = f'trap "echo one >>got" USR1; (setsid sh -c "{inner}") & echo ready; while :; do sleep 0.05; done'
    number = begin(client, api, box, script)
    wait_until(lambda: client.get(url(box, number))["stdout"] == "ready\nready\n")  # both take the signal from now on
    signal(client, box, number, "USR1", scope="tree")
    wait_until(lambda: sorted(client.request("GET", client.file_url(box, "got")).text.split()) == ["one", "two"])
    signal(client, box, number, "KILL", scope="tree")
    record = client.exec_wait(box, number)
    assert record["signal"] == "KILL" and record["exit_code"] is None and record["error"] is None


def test_stop_and_continue(client, api, box):
    number = begin(client, api, box, "exec sleep 0.3")
    signal(client, box, number, "STOP", scope="tree", status=(204, 409))
    signal(client, box, number, "CONT", scope="tree", status=(204, 409))
    assert client.exec_wait(box, number)["exit_code"] == 0


def test_signals_that_cannot_be_sent(client, box):
    number = client.exec(box, ["true"])["id"]
    path = url(box, number, "/signal")
    client.problem("POST", path, 409, "conflict", json={"signal": "TERM"})
    client.problem("POST", path, 409, "conflict", json={"signal": "TERM", "scope": "tree"})
    for body in ({}, {"signal": "NOPE"}, {"signal": 9}, {"signal": "TERM", "scope": "group"}, {"signal": ""}, {"signal": "TERM", "x": 1}):
        client.problem("POST", path, 400, "invalid_field", json=body)
    client.problem("POST", url(box, 999999, "/signal"), 404, "not_found", json={"signal": "TERM"})


def test_b07_delete_leaves_nothing(client, api, box):
    """What ignores TERM, has a session of its own, was forked twice: seen alive first, then gone; and again."""
    script = ("trap '' TERM; (trap '' TERM; exec -a DELA sleep 300) & (setsid bash -c 'trap \"\" TERM; exec -a DELB sleep 300') & "
              "( (exec -a DELC sleep 300) & ) ; exec -a DELD sleep 300")
    number = begin(client, api, box, ["bash", "-c", script], "DELA", "DELB", "DELC", "DELD")
    client.request("DELETE", url(box, number, "?grace=0.2"), 204)
    assert not count(api, box, "DEL")
    record = client.get(url(box, number))
    assert record["signal"] == "KILL" and record["exit_code"] is None and not record["timed_out"] and record["error"] is None
    client.request("DELETE", url(box, number), 204)
    assert client.get(url(box, number)) == record
    assert client.exec(box, ["true"])["exit_code"] == 0


def test_delete_ends_what_was_left_in_the_background(client, api, box):
    number = client.exec(box, ["sh", "-c", "sleep 631 & echo left"])["id"]
    assert count(api, box, "sleep 631")
    client.request("DELETE", url(box, number), 204)
    assert not count(api, box, "sleep 631")
    assert client.get(url(box, number))["exit_code"] == 0


def test_delete_is_seen_by_who_follows(client, api, box):
    events = stream(client, box, "echo here; exec sleep 632")
    events.until("stdout")
    client.request("DELETE", url(box, events.items[0]["exec"]), 204)
    assert events.all()[-1]["result"]["signal"] == "TERM"
    client.problem("DELETE", url(box, 999999), 404, "not_found")
    client.problem("DELETE", url(box, events.items[0]["exec"], "?grace=61"), 400, "invalid_field")


def test_delete_and_signal_after_a_restart(fresh):
    server = fresh()
    client = server.start().client()
    client.create("ends")
    numbers = [begin(client, server.api, "ends", ["sleep", f"64{i}"], f"sleep 64{i}") for i in range(2)]
    left = client.exec("ends", ["sh", "-c", "sleep 649 & echo left"])["id"]
    server.kill()
    server.start()
    wait_until(lambda: client.request("DELETE", url("ends", numbers[0])).status_code == 204)
    signal(client, "ends", numbers[1], "TERM")
    client.request("DELETE", url("ends", left), 204)
    assert [client.exec_wait("ends", number)["signal"] for number in numbers] == ["TERM", "TERM"]
    assert not count(server.api, "ends", "sleep 64")
