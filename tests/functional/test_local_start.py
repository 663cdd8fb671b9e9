"""The local driver: what it needs of the machine, and what the operator may set."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from local_server import LocalServer, let_others_pass
from server import AGENT, BUILD, SERVER, WRAPPER, wait_until

USER = 61234  # some uid that is nobody's
BUSYBOX = Path("/bin/busybox")


@pytest.fixture
def fresh(tmp_path):
    made = []

    def make(*options, **more):
        made.append(LocalServer(None, tmp_path / f"server-{len(made)}", options, **more))
        return made[-1]
    make.servers = made
    yield make
    for server in made:
        server.stop()
        server.end_boxes()


def refusal(server, wrapper=()):
    """Why it does not start."""
    result = subprocess.run([*wrapper, *server.command()], cwd=server.dir, capture_output=True, text=True, timeout=60,
                            env={"PATH": os.environ["PATH"], **server.env})
    assert result.returncode == 1, result
    line = json.loads(result.stderr.splitlines()[-1])
    assert line["msg"] == "cannot start" and line["code"] == "config_error", line
    return line["error"]


def test_without_bubblewrap(fresh):
    assert "bubblewrap" in refusal(fresh(env={"PATH": "/nowhere"}))
    assert "/nowhere/bwrap" in refusal(fresh("--bwrap", "/nowhere/bwrap"))


def test_without_the_agent(fresh):
    error = refusal(fresh("--agent-program", "/nowhere/agent"))
    assert "/nowhere/agent" in error and "--agent-program" in error


class InstalledServer(LocalServer):
    """What `cmake --install` leaves, without what it was built from."""

    def install(self):
        prefix = self.dir / "usr"
        subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
        let_others_pass(prefix / "libexec/podsandbox")
        return prefix

    def command(self):
        program = str(self.dir / "usr/bin/podsandboxd")
        return [program if word == str(SERVER) else word for word in super().command()]


def test_what_is_installed_runs_and_is_replaced_while_it_runs(fresh, tmp_path):
    server = InstalledServer(None, tmp_path / "installed")
    fresh.servers.append(server)
    unit = (server.install() / "lib/systemd/system/podsandboxd.service").read_text()
    assert "ExecStart=podsandboxd --driver local" in unit
    client = server.start().client()
    client.create("box")
    client.put("box", "file", b"kept")
    server.install()
    server.restart()
    assert client.wait_state("box", "running")
    assert client.exec("box", ["cat", "file"])["stdout"] == "kept"


def test_a_directory_that_cannot_be_used(fresh, tmp_path):
    (tmp_path / "file").write_text("")
    assert "not a directory" in refusal(fresh("--local-dir", tmp_path / "file"))
    assert "/nowhere/dir" in refusal(fresh("--local-dir", "/nowhere/dir"))


def test_a_directory_of_another_server(fresh):
    first = fresh().start()
    assert "another server" in refusal(fresh("--local-dir", first.state))


def test_the_directory_becomes_private(fresh):
    server = fresh()
    server.state.mkdir(mode=0o755)
    server.start()
    assert server.state.stat().st_mode & 0o777 == 0o700


def test_wrong_uids(fresh):
    for uids in ("5", "0-10", "9-3", "a-b", "1-4000000001", "1-2000000"):
        assert "--local-uids" in refusal(fresh("--local-uids", uids)), uids


def test_the_setting_that_forbids_namespaces_is_named(fresh):
    """In a user namespace whose own limit of further ones is 0."""
    shell = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\""
    error = refusal(fresh(), ["unshare", "--user", "--map-root-user", "sh", "-c", shell, "sh"])
    assert "user.max_user_namespaces is 0" in error and "sysctl" in error


@pytest.mark.skipif(os.geteuid() != 0, reason="takes other uids")
def test_uids_that_do_not_exist_here(fresh):
    """As in a container whose user namespace has few."""
    server = fresh()
    map_few = ["unshare", "--user", "--map-root-user"]
    assert "--local-uids" in refusal(server, map_few)


def test_what_bubblewrap_says_is_told(fresh, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: no luck today' >&2; exit 1\n")
    broken.chmod(0o755)
    let_others_pass(tmp_path)
    assert "no luck today" in refusal(fresh("--bwrap", broken))


@pytest.mark.parametrize("fault, words", [
    ("echo 'bwrap: no luck here' >&2; exit 1", "no luck here"),  # says why
    ("exit 3", "without a word"),
    ("kill -KILL $$", "without a word"),
    ("printf nonsense >&5; exit 0", "without a word"),  # instead of who the agent is
    ("printf '{\"child-pid\": 999999999}' >&5; exit 0", "without a word"),
])
def test_a_start_that_fails_leaves_nothing(fresh, tmp_path, fault, words):
    broken = tmp_path / "bwrap"
    broken.write_text(f"#!/bin/sh\ncase \"$*\" in *--listen-fd*) {fault};; esac\nexec {shutil.which('bwrap')} \"$@\"\n")
    broken.chmod(0o755)
    let_others_pass(tmp_path)
    server = fresh("--bwrap", broken).start()
    client = server.client()
    before = server.usage()["fds"]
    for number in range(5):
        problem = client.create_problem(422, "container_start_failed", id=f"broken-{number}")
        assert words in problem["detail"], problem
        assert client.sandbox(f"broken-{number}")["state"] == "failed"
    assert server.boxes() == [] and server.cgroups() == []
    assert server.usage()["fds"] <= before + 1, server.descriptors()


def test_host_network_needs_keys(fresh):
    assert "--api-keys-file" in refusal(fresh("--allow-host-network"))
    assert "--api-keys-file" in refusal(fresh("--network", "host"))


def test_host_network(fresh):
    server = fresh("--allow-host-network", keys={"secret": ("ann", "user")}).start()
    client = server.client("secret")
    record = client.create("on-host", network="host")
    assert record["network"] == "host"
    reach = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{server.port}/readyz').status)"
    assert client.exec("on-host", ["python3", "-c", reach])["stdout"] == "200\n"
    client.create("apart")
    assert client.exec("apart", ["python3", "-c", reach])["exit_code"] != 0
    client.delete("on-host")
    client.delete("apart")


def test_an_end_without_a_server(fresh):
    server = fresh("--local-without-server", "1").start()
    client = server.client()
    uid = client.create("lonely", ttl=3600)["uid"]
    server.kill()
    wait_until(lambda: not server.processes([uid]), what="its end")
    server.start()
    assert client.wait_state("lonely", "gone")["reason"] == "removed_externally"
    server.wait_gone("lonely")


def make_root(directory):
    """A root file system with a shell of its own."""
    for name in ("bin", "etc", "usr/lib", "data"):
        (directory / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, directory / "bin/busybox")
    for name in ("sh", "ls", "cat", "touch"):
        (directory / "bin" / name).symlink_to("busybox")
    (directory / "etc/made-for").write_text("this image\n")
    (directory / "etc/resolv.conf").symlink_to("/run/nothing")
    (directory / "opt").symlink_to("data")


@pytest.mark.skipif(bool(WRAPPER), reason="valgrind 3.19 does not know openat2")
@pytest.mark.skipif(not BUSYBOX.exists(), reason="needs busybox-static")
def test_images(fresh, tmp_path):
    images = tmp_path / "images"
    make_root(images / "small")
    subprocess.run(["tar", "-C", images / "small", "-cf", images / "packed.tar", "."], check=True)
    let_others_pass(images)
    server = fresh("--local-images", images).start()
    client = server.client()
    for image in ("small", "packed.tar"):
        box = client.create(image=image, writable_mounts={"deep": "/usr/lib/deep/er", "top": "/top"})["id"]
        out = client.exec(box, "cat /etc/made-for; ls -d /usr/lib/*; touch /usr/lib/deep/er/x /top/x; ls /data; cat /etc/resolv.conf")
        assert (out["stdout"], out["stderr"]) == ("this image\n/usr/lib/deep\n", ""), out
        for path in ("/", "/etc", "/usr/lib", "/usr/lib/deep", "/data"):
            assert client.exec(box, ["touch", f"{path}/x"])["exit_code"] != 0, path
        assert client.exec(box, ["ls", "/usr/bin"])["exit_code"] != 0
        server.kill()
        server.start()
        assert client.exec(box, ["cat", "/etc/made-for"])["stdout"] == "this image\n"
        client.delete(box)
    assert os.listdir(images / "small/usr/lib") == []
    assert "--local-images" in client.create_problem(422, "invalid_image", image="missing")["detail"]
    client.create_problem((400, 403, 422), image="../etc")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_as_any_user(tmp_path):
    """No privilege: sandboxes run as the user, and what cannot be limited is told."""
    home = Path("/var/tmp") / f"podsandbox-test-{os.getpid()}"
    home.mkdir(mode=0o700)
    try:
        for program in (SERVER, AGENT):
            shutil.copy(program, home / program.name)
        server = LocalServer(None, home / "server")
        for path in (home, *home.rglob("*")):
            os.chown(path, USER, USER)
        words = server.command()
        words[words.index(str(SERVER))] = str(home / SERVER.name)
        server.command = lambda: ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *words]
        server.start()
        client = server.client()
        record = client.create("mine")
        status = Path(f"/proc/{server.agent_pid('mine')}/status").read_text()
        assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in status
        assert not record["limits"]["memory"]["enforced"] and record["limits"]["storage"]["enforced"]
        assert client.get("/v1/capabilities")["warnings"] != []
        assert client.exec("mine", "id -u; echo x > file; cat file")["stdout"] == "1000\nx\n"
        server.kill()
        server.start()
        assert client.exec("mine", "cat file")["stdout"] == "x\n"
        client.delete("mine")
        assert server.boxes() == [] and server.processes([record["uid"]]) == []
        server.stop()
    finally:
        shutil.rmtree(home)
