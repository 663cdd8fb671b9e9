"""What the Dockerfiles make: only what runs, and that it runs."""

import os
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT

MIB = 1 << 20


@pytest.fixture(scope="module")
def server(images):
    images.build("localhost/podsandbox:test", ROOT)
    with images.mounted("localhost/podsandbox:test") as root:
        yield root


@pytest.fixture(scope="module")
def sandbox(images):
    images.build("localhost/sandbox:test", ROOT / "deploy/sandbox-image")
    with images.mounted("localhost/sandbox:test") as root:
        yield root


def files(root):
    return [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]


def inside(root, *command, check=True):
    """As uid 1000, without any capability, and with a root that cannot be written."""
    words = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && { [ ! -d "$0/dev" ] || mount --bind /dev "$0/dev"; } && exec chroot --userspec=1000:1000 "$0" "$@"',
             root, *command]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=120, env={"PATH": os.environ["PATH"], "HOME": "/tmp"})
    assert not check or done.returncode == 0, done.stderr
    return done


# --- the server's ------------------------------------------------------------------------
def test_only_what_runs(server):
    names = {str(path.relative_to(server)) for path in files(server)}
    libraries = {name for name in names if ".so" in name}
    assert names - libraries == {"podsandboxd", "podsandbox-agent", "podsandbox-agent.0755", "etc/passwd", "etc/ssl/certs/ca-certificates.crt"}
    needed = subprocess.run(["chroot", server, *[f"/{name}" for name in libraries if Path(name).name.startswith("ld-")][:1], "--list", "/podsandboxd"],
                            capture_output=True, text=True, check=True).stdout
    assert all(Path(name).name in needed for name in libraries), needed


def test_it_is_small(server):
    assert sum(path.stat().st_size for path in files(server)) <= 30 * MIB


def test_who_may_read_the_agent(server):
    agent, readable = server / "podsandbox-agent", server / "podsandbox-agent.0755"
    assert (agent.stat().st_mode & 0o7777, agent.stat().st_uid) == (0o711, 0)
    assert readable.stat().st_mode & 0o7777 == 0o755 and readable.read_bytes() == agent.read_bytes()


def test_it_runs_unprivileged(images, server):
    config = images.config("localhost/podsandbox:test")
    assert config["User"] == "1000:1000" and config["Entrypoint"] == ["/podsandboxd"]
    assert inside(server, "/podsandboxd", "--version").stdout.startswith("podsandboxd ")
    refused = inside(server, "/podsandboxd", "--driver", "fake", "--store", "/nowhere/store", check=False)
    assert refused.returncode != 0 and "'/nowhere/store.key'" in refused.stderr


# --- the sandboxes' ----------------------------------------------------------------------
@pytest.mark.parametrize("command, said", [
    (["git", "--version"], "git version"), (["curl", "--version"], "curl "), (["node", "-e", "console.log(6*7)"], "42"), (["npm", "--version"], "."),
    (["python3", "-c", "print(6*7)"], "42"), (["python", "-c", "import venv, ssl, sqlite3; print('ok')"], "ok"), (["pip", "--version"], "pip "),
    (["sh", "-c", "gcc --version && g++ --version && make --version"], "GNU Make"), (["rg", "--version"], "ripgrep"), (["jq", "-n", "6*7"], "42"),
    (["id", "-u"], "1000"), (["sh", "-c", "cd ~sandbox && pwd"], "/home/sandbox")])
def test_what_agents_expect(sandbox, command, said):
    assert said in inside(sandbox, *command).stdout


def test_whose_the_workspace_is(images, sandbox):
    config = images.config("localhost/sandbox:test")
    assert (config["User"], config["WorkingDir"]) == ("1000:1000", "/workspace")
    assert (sandbox / "workspace").stat().st_uid == 1000


def test_no_lists_of_packages_are_left(sandbox):
    assert not [path for path in files(sandbox) if "var/lib/apt/lists" in str(path)]
