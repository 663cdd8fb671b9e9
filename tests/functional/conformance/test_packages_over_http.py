"""examples/python/podsandbox_http.py: what users of the two Python packages have, on our API, on every driver."""

import asyncio
import secrets
import sys
from pathlib import Path

import dockersandbox.base
import podsandbox.base
import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples/python"
sys.path.insert(0, str(EXAMPLES))

import podsandbox_http as over_http  # noqa: E402

pytestmark = pytest.mark.needs("programs")


@pytest.fixture
def box(server):
    """A sandbox made through the module, and its end."""
    box = over_http.Sandbox(sandbox_id=unique_id("http"), backend=api_of(server))
    asyncio.run(box.start(image=server.client().image, env={"FROM": "start"}))
    yield box
    asyncio.run(box.stop())


def unique_id(word):
    return f"{word}-{secrets.token_hex(3)}"


def api_of(server):
    client = server.client()
    return over_http.Api(client.base, client.key)


def run(coroutine):
    return asyncio.run(coroutine)


def test_both_protocols():
    for kind in (over_http.Sandbox, over_http.DockerSandbox):
        assert isinstance(kind(), podsandbox.base.SandboxProtocol) and isinstance(kind(), dockersandbox.base.Sandbox)


def test_commands(box):
    assert run(box.exec(["sh", "-c", "echo out; echo err >&2; exit 3"])) == over_http.ExecResult(3, "out\n", "err\n")
    assert run(box.exec(["sh", "-c", 'echo "$FROM $HERE $PWD"'], env={"HERE": "a b"}, workdir="/tmp")).stdout == "start a b /tmp\n"
    assert run(box.exec(["echo", "$(id); *"])).stdout == "$(id); *\n"
    assert run(box.exec(["no-such-program"])).exit_code == 127
    assert run(box.exec(["sh", "-c", "kill -9 $$"])).exit_code == 137


def test_output_that_no_answer_carries(box):
    result = run(box.exec(["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"]))
    assert result.exit_code == 0 and result.stdout == "x" * 3000000


def test_a_command_that_takes_too_long(box):
    with pytest.raises(over_http.SandboxTimeoutError):
        run(box.exec(["sleep", "60"], timeout=0.3))
    assert run(box.exec(["true"])).exit_code == 0


def test_files(box):
    run(box.write_file("a/b c.txt", "one\n"))
    run(box.put_file("/tmp/token", "t0ken", mode=0o600))
    assert run(box.read_file("a/b c.txt")) == "one\n" and run(box.list_files()) == ["a/b c.txt"] == run(box.list_files("a"))
    assert run(box.exec(["stat", "-c", "%a", "/tmp/token"])).stdout == "600\n"
    with pytest.raises(over_http.SandboxExecError, match="missing"):
        run(box.read_file("missing"))
    with pytest.raises(over_http.SandboxExecError):
        run(box.list_files("missing"))
    with pytest.raises(over_http.SandboxExecError, match="absolute"):
        run(box.put_file("token", "x"))


def test_secrets_show_nowhere(box):
    box.add_secret("s3cr3t-value")
    box.add_secret("")
    result = run(box.exec(["sh", "-c", "echo a s3cr3t-value; echo s3cr3t-value b >&2"]))
    assert (result.stdout, result.stderr) == ("a ***\n", "*** b\n")
    run(box.write_file("holds", "it is s3cr3t-value"))
    assert "s3cr3t" not in run(box.read_file("holds"))
    with pytest.raises(over_http.SandboxExecError) as failure:
        run(box.read_file("/tmp/s3cr3t-value"))
    assert "s3cr3t" not in str(failure.value)


@pytest.mark.needs("previews")
def test_a_preview(server, box):
    run(box.write_file("index.html", "<h1>here</h1>"))
    serve = ["python3", "-u", "-m", "http.server", "8000"]
    if run(box.exec(["sh", "-c", "command -v python3"])).exit_code != 0:
        serve = ["httpd", "-f", "-v", "-p", "8000"]
    preview = run(box.start_service(serve, port=8000))
    assert box.sandbox_id in preview.url and not preview.url.endswith("/") and preview.port == 8000
    shown = server.client().get(f"/v1/sandboxes/{box.sandbox_id}/previews")["items"][0]
    assert shown["state"] == "ready"
    assert ".podsandbox-preview.log" in run(box.list_files())


def test_the_reaper_finds_it_by_its_id(server, box):
    other = over_http.DockerSandbox(client=api_of(server))
    assert run(other.exists(box.sandbox_id)) and run(other.container_exists(box.sandbox_id)) and box.container_id == box.sandbox_id
    run(other.remove_container(box.sandbox_id))
    assert not run(other.exists(box.sandbox_id)) and not run(other.exists("")) and other.container_id is None
    run(other.remove(box.sandbox_id))
    run(other.remove(""))
    with pytest.raises(over_http.SandboxExecError):
        run(box.exec(["true"]))


def test_stop_is_safe_at_any_time(server):
    box = over_http.Sandbox(sandbox_id=unique_id("stops"), backend=api_of(server))
    run(box.stop())
    run(box.start(image=server.client().image))
    run(box.stop())
    run(box.stop())
    assert box.container_id is None and not run(box.exists(box.sandbox_id))


def test_what_cannot_start(server):
    box = over_http.Sandbox(backend=api_of(server), secrets=["hidden-word"])
    with pytest.raises(over_http.SandboxProvisionError) as failure:
        run(box.start(image="no such image hidden-word"))
    assert "hidden-word" not in str(failure.value)
    with pytest.raises(over_http.SandboxProvisionError, match="does not answer"):
        run(over_http.Sandbox(backend=over_http.Api("http://127.0.0.1:1")).start(image="any"))
    with pytest.raises(over_http.SandboxServiceError):
        run(box.start_service(["true"], port=1))


def test_listings_of_the_other_package(server):
    """Relative to the path that is listed, as it has them."""
    box = over_http.DockerSandbox(client=api_of(server))
    run(box.start(image=server.client().image))
    try:
        run(box.write_file("d/e/f", ""))
        assert run(box.list_files()) == ["d/e/f"] and run(box.list_files("d")) == ["e/f"] == run(box.list_files("./d/"))
    finally:
        run(box.stop())
