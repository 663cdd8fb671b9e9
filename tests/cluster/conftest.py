import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "functional")]

import cluster  # noqa: E402
import server as under_test  # noqa: E402
from cluster import ClusterServer  # noqa: E402


def pytest_collection_modifyitems(items):
    if items and not under_test.SERVER.exists():
        raise pytest.UsageError(f"{under_test.SERVER} is missing: build first, or set PODSANDBOX_BUILD")
    if items and not cluster.KUBECONFIG:
        raise pytest.UsageError("KUBECONFIG is not set: run this through tests/cluster/in-node")
    for item in items:
        if item.get_closest_marker("own_cluster") and not cluster.IS_OWN:
            item.add_marker(pytest.mark.skip(reason="needs the cluster of tests/cluster/up"))


def pytest_configure(config):
    config.addinivalue_line("markers", "own_cluster: does things to the node that are for our own test cluster only")


@pytest.fixture(scope="session", autouse=True)
def clean_cluster():
    with cluster.one_run_at_a_time():
        cluster.sweep_leftovers()
        with cluster.sandboxes_namespace():
            yield


def ended(server):
    """It must end well, and what it made goes."""
    try:
        server.end()
    finally:
        server.sweep()


@pytest.fixture(scope="session")
def cloud(clean_cluster, tmp_path_factory):
    """A podsandboxd on the cluster, for all tests."""
    server = ClusterServer(tmp_path_factory.mktemp("cloud"))
    server.start()
    yield server
    ended(server)


@pytest.fixture
def server(cloud):
    """It runs before and after each test."""
    yield cloud
    cloud.revive()


@pytest.fixture
def client(server):
    return server.client()


@pytest.fixture
def fresh(clean_cluster, tmp_path):
    """fresh(options…): a podsandboxd of its own for this test, not started yet."""
    made = []

    def make(*options, directory=None, **more):
        made.append(ClusterServer(directory or tmp_path / f"server-{len(made)}", options, **more))
        return made[-1]
    yield make
    failures = []
    for one in reversed(made):
        try:
            ended(one)
        except AssertionError as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


@pytest.fixture
def sandbox(client):
    """The id of a sandbox that is ready."""
    record = client.create()
    yield record["id"]
    client.delete(record["id"], expect=(202, 204))


@pytest.fixture(scope="module")
def box(cloud):
    """One sandbox for all tests of a file, which leave it as it was."""
    record = cloud.client().create(ttl=3600)
    yield record["id"]
    cloud.client().delete(record["id"], expect=(202, 204))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    cloud = item.funcargs.get("cloud") if hasattr(item, "funcargs") else None
    if report.failed and cloud is not None:
        report.sections.append(("podsandboxd", cloud.log()[-2500:]))
