"""The examples, each run as its user runs it, on sandboxes of this machine."""

import json
import os
import re
import signal
import subprocess
import sys
import tarfile

import pytest

from fake_driver import FakeServer, reply
from git_http import git, make_repository, serving
from local_server import LocalServer
from scripted_model import answering, results, say, use
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
    plain = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and not name.startswith("ANTHROPIC_")}
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


def test_hello_by_curl(server):
    hello = ROOT / "examples/curl/hello.sh"
    ended = subprocess.run([hello], env=environment(server), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stderr == "" and ended.stdout.endswith("3 data.txt\n"), ended
    created, end = json.JSONDecoder().raw_decode(ended.stdout)
    assert created["state"] == "running" and '"exit_code":0' in ended.stdout[end:]
    ended = subprocess.run([hello, "no-such-image"], env=environment(server), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 22 and "invalid_image" in ended.stdout
    ended = subprocess.run([hello], env=environment(server, PODSANDBOX_API_KEY=""), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 22 and '"status":401' in ended.stdout


def test_preview(server):
    page, said = open_preview(server, EXAMPLES / "preview.py")
    assert page[0] == 200 and "Hello from a sandbox" in page[1]
    assert '"GET / HTTP/1.1" 200' in said


def test_preview_that_is_interrupted(server):
    """The sandbox ends, and the program does not wait for Enter."""
    with subprocess.Popen([sys.executable, EXAMPLES / "preview.py"], env=environment(server), text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert any(line == "Enter ends it.\n" for line in process.stdout)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0 and process.stderr.read().endswith("KeyboardInterrupt\n")


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


# --- the coding agent -----------------------------------------------------------------------------
AGENT = EXAMPLES / "coding_agent.py"


def test_coding_agent_builds_and_shows_a_page(server):
    turns = (
        [say("I look around."), use("list_files")],
        [use("write_file", path="site/index.html", content="<h1>draft</h1>\n"), use("read_file", path="site/index.html")],
        [use("edit_file", path="site/index.html", old="draft", new="A timer"), use("run_command", command="grep -c timer site/index.html; ls nowhere")],
        [use("finish", summary="it cannot start", command="echo broken >&2; exit 3", port=8000)],
        [use("finish", summary="a timer", command="exec python3 -u -m http.server --directory site 8000", port=8000)],
    )
    with answering(*turns) as (url, came):
        page, said = open_preview(server, AGENT, "--base-url", url, "Build a timer.")
    assert page == (200, "<h1>A timer</h1>\n") and "I look around." in said and "finished: a timer" in said
    assert len(came) == 5 and came[0]["messages"] == [{"role": "user", "content": "Build a timer."}]
    assert {tool["name"] for tool in came[0]["tools"]} == {"list_files", "read_file", "write_file", "edit_file", "run_command", "finish"}
    assert results(came[1]) == [(False, "(none)")]
    assert results(came[2]) == [(False, "wrote site/index.html"), (False, "<h1>draft</h1>\n")]
    (edited, (failed, ran)) = results(came[3])
    assert edited == (False, "edited site/index.html") and not failed
    assert ran.startswith("exit code 2\nstdout:\n1\n\nstderr:\nls: ") and "nowhere" in ran
    ((failed, why),) = results(came[4])
    assert failed and "8000" in why and why.endswith("\nIts output: broken\n")


def test_coding_agent_hears_what_went_wrong(server):
    turns = (
        [use("run_command", command="sleep 600"), use("run_command", command="seq 100000"), use("read_file", path="missing")],
        [use("write_file", path="two", content="x x"), use("edit_file", path="two", old="x", new="y"), use("edit_file", path="two", old="z", new="y")],
        [use("write_file", path="two"), use("read_file", path=3), use("list_files", where="."), use("box"), use("finish", summary="", port=1)],
        [use("write_file", path="cut", content="half of")],
        [use("finish", summary="", command="true", port=0)],
        [use("list_files"), use("finish", summary="nothing to see")],
    )
    with answering(*turns, stop_reasons={3: "max_tokens"}) as (url, came):
        said = run_well(server, AGENT, "--base-url", url, "--command-timeout", "5")
    assert "finished: nothing to see" in said and "open:" not in said
    (late, (failed, much), missing) = results(came[1])
    assert late[0] and late[1].startswith("the command ran longer than 5")
    assert not failed and len(much) < 5000 and much.endswith("99999\n100000\n\nstderr:\n") and "are not shown]" in much
    assert missing[0] and "missing" in missing[1]
    assert [failed for failed, _ in results(came[2])] == [False, True, True]
    assert [text for _, text in results(came[2])][1:] == [f"the text to replace is in two {count} times, not once" for count in (2, 0)]
    assert results(came[3]) == [(True, text) for text in (
        "write_file needs content", "path is no string", "list_files has no where", "there is no tool box", "command and port go together")]
    assert [failed for failed, _ in results(came[4])] == [True]
    ((failed, why),) = results(came[5])
    assert failed and "port" in why and why.endswith("Its output: (none: it was not started)")


def test_coding_agent_that_does_not_finish(server):
    with answering([use("write_file", path="again", content="")]) as (url, came):
        ended = run(server, AGENT, "--base-url", url, "--max-turns", "3")
    assert ended.returncode == 1 and len(came) == 3 and ended.stdout.endswith("It did not finish; what it has:\nagain\n")
    with answering([say("I would rather not.")]) as (url, came):
        ended = run(server, AGENT, "--base-url", url)
    assert ended.returncode == 1 and len(came) == 1 and "I would rather not.\nIt did not finish" in ended.stdout
    with answering(400) as (url, _):
        ended = run(server, AGENT, "--base-url", url)
    assert ended.returncode == 1 and "coding_agent: " in ended.stderr and "scripted failure" in ended.stderr
    ended = run(server, AGENT)
    assert ended.returncode == 2 and "ANTHROPIC_API_KEY" in ended.stderr and ended.stdout == ""


def test_coding_agent_without_a_substrate(tmp_path):
    """On the fake driver, without any key."""
    server = FakeServer(tmp_path).start()
    try:
        reply(server.client(), {"prefix": ["sh", "-c", "pytest"]}, {"exit_code": 1, "stdout": "1 failed\n"})
        turns = ([use("write_file", path="a.py", content="pass\n"), use("run_command", command="pytest"), use("list_files")],
                 [use("finish", summary="as well as it goes")])
        with answering(*turns) as (url, came):
            said = run_well(server, AGENT, "--base-url", url, "--image", "made-up:1", env={"PODSANDBOX_API_KEY": ""})
        assert results(came[1]) == [(False, "wrote a.py"), (False, "exit code 1\nstdout:\n1 failed\n\nstderr:\n"), (False, "a.py")]
        assert "finished: as well as it goes" in said and server.client().list() == []
    finally:
        server.stop()


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
