"""One suite for every driver. What a driver does not promise in GET /v1/capabilities is skipped: `needs`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import drivers  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(promise): skipped where the driver does not make that promise")


@pytest.fixture(scope="session", params=drivers.chosen(), ids=lambda driver: driver.name)
def driver(request):
    with request.param.session():
        yield request.param


@pytest.fixture(scope="session")
def cloud(driver, node_root, tmp_path_factory):
    """A podsandboxd with that driver, for all tests."""
    server = driver.server(tmp_path_factory.mktemp(driver.name), node_root / driver.name, ("--reap-every", "1")).start()
    yield server
    driver.end(server)


@pytest.fixture(scope="session")
def promises(cloud):
    return cloud.client().get("/v1/capabilities")["promises"]


@pytest.fixture(autouse=True)
def promised(request, driver, promises):
    for mark in request.node.iter_markers("needs"):
        for promise in mark.args:
            if not promises[promise]:
                pytest.skip(f"{driver.name} does not promise {promise}")


@pytest.fixture
def server(cloud):
    """It runs before and after each test."""
    yield cloud
    cloud.revive()


@pytest.fixture
def fresh(request, driver, node_root, tmp_path):
    """fresh(options…): a podsandboxd of its own for this test, not started yet."""
    made = []

    def make(*options, **more):
        name = f"fresh-{driver.name}-{request.node.originalname}-{len(made)}"
        made.append(driver.server(tmp_path / f"server-{len(made)}", node_root / name, options, **more))
        return made[-1]
    make.servers = made
    yield make
    for one in reversed(made):
        driver.end(one)


@pytest.fixture(scope="module")
def box(cloud):
    """One sandbox for all tests of a file, which leave it as it was."""
    record = cloud.client().create(ttl=3600)
    yield record["id"]
    cloud.client().delete(record["id"], expect=(202, 204))
