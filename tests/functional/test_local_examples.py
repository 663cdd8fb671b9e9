"""The examples, each run as its user runs it, on sandboxes of this machine."""

import os
import re
import subprocess
import sys
import tarfile

import pytest

from git_http import git, make_repository, serving
from local_server import LocalServer
from server import ROOT

EXAMPLES = ROOT / "examples/python"
KEY, TOKEN = "key-of-the-examples", "t0ken/of+git"
OPTIONS = ("--preview-mode", "proxy", "--preview-domain", "localhost", "--allow-host-network")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = LocalServer(None, tmp_path_factory.mktemp("examples"), OPTIONS, {KEY: ("ann", "user")}).start()
    yield server
    server.stop()
    server.end_boxes()


@pytest.fixture(autouse=True)
def leaves_nothing(server):
    yield
    assert server.client(KEY).list() == []


def environment(server, **more):
    plain = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**plain, "PODSANDBOX_URL": server.url, "PODSANDBOX_API_KEY": KEY, **more}


def run(server, *args, env=None, stdin=""):
    """How an example ended, and what it wrote."""
    return subprocess.run([sys.executable, *map(str, args)], env=environment(server, **env or {}), input=stdin, capture_output=True,
                          text=True, timeout=240)


def run_well(server, *args, **more):
    ended = run(server, *args, **more)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def open_preview(server, *args, env=None):
    """Fetches what an example shows, then presses Enter: (page, all that it wrote)."""
    with subprocess.Popen([sys.executable, *map(str, args)], env=environment(server, PYTHONUNBUFFERED="1", **env or {}), text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("open:"):
                break
        url = re.search(r"^open: (http\S+)", said, re.M)
        page = url and server.fetch(None, {"url": url[1]})
        said += process.communicate("\n", timeout=120)[0]
    assert process.returncode == 0 and url, said
    return page, said


# --- ours -----------------------------------------------------------------------------------------
def test_hello_exec(server):
    said = run_well(server, EXAMPLES / "hello_exec.py")
    assert "stdout='3 data.txt\\n'" in said and "stdout='42\\n'" in said and "files: ['data.txt']" in said


def test_preview(server):
    page, said = open_preview(server, EXAMPLES / "preview.py")
    assert page[0] == 200 and "Hello from a sandbox" in page[1]
    assert '"GET / HTTP/1.1" 200' in said


@pytest.fixture
def project(tmp_path):
    """With a Makefile, a test, and what a build does not want."""
    directory = tmp_path / "project"
    (directory / "node_modules").mkdir(parents=True)
    (directory / "node_modules/left.js").write_text("")
    (directory / "Makefile").write_text("sum: sum.sh\n\tinstall -m 755 sum.sh sum\ntest: sum\n\ttest $$(./sum 2 3) = 5\n")
    (directory / "sum.sh").write_text("#!/bin/sh\necho $(($1 + $2))\n")
    return directory


def test_ci_build(server, project):
    said = run_well(server, EXAMPLES / "ci_build.py", project, "make", "make test", 'ls; echo "CI is $CI"')
    assert re.findall(r"^(ok|FAILED): (.*) \(exit code (\d+),", said, re.M) == [
        ("ok", "make", "0"), ("ok", "make test", "0"), ("ok", 'ls; echo "CI is $CI"', "0")]
    assert said.endswith("Makefile\nsum\nsum.sh\nCI is true\n") and not (project / "sum").exists()


def test_ci_build_that_fails(server, project):
    (project / "sum.sh").write_text("#!/bin/sh\necho 6\n")
    ended = run(server, EXAMPLES / "ci_build.py", project, "make", "seq 5000; make test", "echo never")
    assert ended.returncode == 1 and "FAILED: seq 5000; make test (exit code 2," in ended.stdout and "Error 1" in ended.stdout
    assert "never" not in ended.stdout and "5000\n" in ended.stdout and "\n500\n" not in ended.stdout
    ended = run(server, EXAMPLES / "ci_build.py", "--timeout", "0.5", project, "sleep 600")
    assert ended.returncode == 1 and "FAILED: sleep 600 (took too long," in ended.stdout


def test_git_repo(server, tmp_path):
    bare = make_repository(tmp_path, "project", {"README": "one\n"})
    with serving(tmp_path, "oauth2", TOKEN) as url:
        ended = run(server, EXAMPLES / "git_repo.py", "--network", "host", f"{url}/project.git", env={"GIT_TOKEN": TOKEN})
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "+++ b/NOTES.md\n@@ -0,0 +1 @@\n+Written in a sandbox.\n" in ended.stdout and "published: sandbox/notes" in ended.stdout
        assert git("show", "sandbox/notes:NOTES.md", cwd=bare) == "Written in a sandbox.\n"
        assert git("log", "--format=%s by %an", "sandbox/notes", cwd=bare) == "Add notes by Sandbox\nfirst by Test\n"

        ended = run(server, EXAMPLES / "git_repo.py", "--network", "host", f"{url}/project.git", env={"GIT_TOKEN": "wr0ng-token"})
        assert ended.returncode == 1 and "git_repo: git clone" in ended.stderr
        assert "wr0ng-token" not in ended.stdout + ended.stderr


# --- the package's own ----------------------------------------------------------------------------
AS_THE_PACKAGE = """
import runpy, sys, podsandbox_http

class Sandbox(podsandbox_http.Sandbox):
    async def start(self, *, image, env=None):
        assert image == "podsandbox-example:latest", image
        await super().start(image="host", env=env)

sys.modules["podsandbox"] = podsandbox_http
podsandbox_http.Sandbox = Sandbox
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.fixture(scope="module")
def package_examples(tmp_path_factory):
    """From its source distribution; the installed package has none."""
    directory = tmp_path_factory.mktemp("sdist")
    fetched = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "podsandbox==0.1.0"],
                             cwd=directory, capture_output=True, text=True, timeout=240)
    if fetched.returncode != 0:
        pytest.skip(f"pip cannot fetch the sources of podsandbox 0.1.0: {fetched.stderr.strip()[-300:]}")
    with tarfile.open(directory / "podsandbox-0.1.0.tar.gz") as archive:
        archive.extractall(directory)
    return directory / "podsandbox-0.1.0/examples"


def as_the_package(example):
    return ["-c", AS_THE_PACKAGE, example]


def test_hello_exec_of_the_package(server, package_examples):
    said = run_well(server, *as_the_package(package_examples / "hello_exec.py"), env={"PYTHONPATH": str(EXAMPLES)})
    assert "stdout='3 data.txt\\n'" in said and "stdout='42\\n'" in said and "files: ['data.txt']" in said


def test_preview_of_the_package(server, package_examples):
    page, said = open_preview(server, *as_the_package(package_examples / "preview.py"), env={"PYTHONPATH": str(EXAMPLES)})
    assert page == (200, "<h1>hello from the sandbox</h1>\n") and "ExecResult(exit_code=0" in said
