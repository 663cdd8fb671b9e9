"""What dockersandbox 0.1.0 promises in its own tests, held by the REST API on a real Docker Engine, and what it does with our containers.

Each of its tests and the test that holds the same promise here; README, "Coming from the Python packages", says what differs.

tests/test_docker_sandbox.py
  start_launches_idle_container_and_prepares_workdir   an_idle_container_with_a_workdir
  exec_runs_argv_with_workdir_and_env                  workdir_and_environment_of_one_command
  put_file_streams_a_tar_never_an_argv                 content_is_in_no_argument_list
  write_file_base64_encodes_content                    content_and_paths_are_never_code
  output_is_scrubbed                                   conformance test_masking
  stop_is_idempotent                                   removing_twice_is_no_error
  provision_error_when_daemon_rejects_run              a_create_that_the_engine_rejects
tests/test_fake_sandbox.py, tests/test_git_recipe.py   cluster test_promises
"""

import asyncio

import pytest

TOKEN = "tok-3n-of-the-promises"


@pytest.fixture
def theirs(address, monkeypatch):
    """A DockerSandbox of the package, unmodified, on the same engine."""
    from dockersandbox import DockerSandbox
    monkeypatch.setenv("DOCKER_HOST", address)
    return DockerSandbox()


def test_an_idle_container_with_a_workdir(client, engine):
    record = client.create(workdir="/srv/deep/work", image="localhost/busybox:1")
    said = engine.container(record["id"])
    assert said["State"]["Running"] and said["Config"]["Image"] == "localhost/busybox:1"
    assert client.exec(record["id"], "pwd; echo 1 >f; cat f")["stdout"] == "/srv/deep/work\n1\n"
    client.delete(record["id"])


def test_workdir_and_environment_of_one_command(client, box):
    client.exec(box, ["mkdir", "-p", "sub"])
    result = client.exec(box, ["sh", "-c", "pwd; echo $A"], workdir="/workspace/sub", env={"A": "$B ; x"})
    assert result["stdout"] == "/workspace/sub\n$B ; x\n"
    assert client.exec(box, ["sh", "-c", "pwd; echo $A"])["stdout"] == "/workspace\n\n"


def test_content_is_in_no_argument_list(client, box):
    """While a file is being written, nothing of it is in a command line."""
    started = client.start(box, "while [ ! -e stop ]; do cat /proc/[0-9]*/cmdline; done 2>/dev/null | grep -ac '[s]ecret-content'")
    for i in range(20):
        client.put(box, f"/tmp/secret-{i}", b"secret-content\n", more="&mode=0600")
    client.put(box, "stop", b"")
    assert client.exec_wait(box, started["id"])["stdout"] == "0\n"
    result = client.exec(box, ["stat", "-c", "%a", "/tmp/secret-1"])
    assert result["stdout"] == "600\n" and client.read(box, "/tmp/secret-1") == b"secret-content\n"


def test_content_and_paths_are_never_code(client, box):
    name, data = "a $(touch pwned) `touch pwned`;'\" b", bytes(range(256))
    client.put(box, name, data)
    assert client.read(box, name) == data
    assert client.exec(box, ["ls", "pwned"])["exit_code"] != 0


def test_a_create_that_the_engine_rejects(client):
    problem = client.create_problem((422, 502), "image_pull_failed", id="rejected", image="localhost/nowhere/at-all:1", secrets=["nowhere"])
    assert problem["category"] == "provision_error" and "nowhere" not in problem["detail"] and "***" in problem["detail"]
    client.delete("rejected")


def test_removing_twice_is_no_error(client, engine):
    client.create("twice", image="localhost/busybox:1")
    engine.remove("sandbox-twice")
    for _ in range(3):
        client.delete("twice", 204)
    client.problem("DELETE", "/v1/sandboxes/never-was", 404, "not_found")


def test_the_package_finds_and_removes_our_containers(client, theirs):
    """By the id that the record shows: its reaper's two calls."""
    id = client.create()["id"]
    container = client.sandbox(id)["backend"]["container_id"]
    assert asyncio.run(theirs.container_exists(container)) is True
    asyncio.run(theirs.remove_container(container))
    assert asyncio.run(theirs.container_exists(container)) is False
    assert client.wait_state(id, "gone")["reason"] == "removed_externally"
    assert client.request("HEAD", f"/v1/sandboxes/{id}").status_code == 410


def test_we_do_not_touch_the_packages_own(client, theirs):
    async def life():
        await theirs.start(image="localhost/busybox:1")
        try:
            client.post("/v1/admin/reap", {})
            return await theirs.exec(["echo", TOKEN])
        finally:
            await theirs.stop()
    assert asyncio.run(life()).stdout == f"{TOKEN}\n"
