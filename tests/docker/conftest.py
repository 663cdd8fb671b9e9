"""podsandboxd with a real Docker Engine: PODSANDBOX_DOCKER_HOST, which has the tests' images, or one of the tests' own."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "functional"))

import engine as engines  # noqa: E402
from docker_server import DockerServer  # noqa: E402


@pytest.fixture(scope="session")
def address():
    if given := os.environ.get("PODSANDBOX_DOCKER_HOST"):
        yield given
        return
    with engines.TemporaryEngine() as own:
        yield own.url


def end(server):
    try:
        server.end()
    finally:
        server.end_boxes()


@pytest.fixture(scope="session")
def server(address, tmp_path_factory):
    server = DockerServer(address, tmp_path_factory.mktemp("docker"), ("--reap-every", "1", "--allow-profiles", "compat")).start()
    yield server
    end(server)


@pytest.fixture
def fresh(address, tmp_path):
    """fresh(options…): a podsandboxd of its own for this test, not started yet."""
    made = []

    def make(*options, **more):
        made.append(DockerServer(more.pop("address", address), tmp_path / f"server-{len(made)}", options, **more))
        return made[-1]
    yield make
    for one in reversed(made):
        end(one)


@pytest.fixture
def client(server):
    return server.client()


@pytest.fixture
def engine(server):
    """Requests to the engine itself."""
    return server.engine


@pytest.fixture(scope="module")
def box(server):
    """One sandbox for all tests of a file, which leave it as it was."""
    record = server.client().create(ttl=3600)
    yield record["id"]
    server.client().delete(record["id"], expect=(202, 204))
