import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import server as under_test  # noqa: E402
from fake_apiserver import ApiServer  # noqa: E402
from server import Server  # noqa: E402

def pytest_collection_modifyitems(items):
    if items and not under_test.AGENT.exists():
        raise pytest.UsageError(f"{under_test.AGENT} is missing: build first, or set PODSANDBOX_BUILD")


@pytest.fixture(scope="session")
def node_root(tmp_path_factory):
    """Where pods have their volumes. Others than root need to reach them."""
    root = tmp_path_factory.mktemp("node")
    for path in (root, *root.parents):
        mode = path.stat().st_mode
        if not mode & 0o001:
            path.chmod(mode | 0o011)
    return root


@pytest.fixture(scope="module")
def cloud(request, node_root, tmp_path_factory):
    """A fake API server and a podsandboxd that uses it, for all tests of a file."""
    with_api = ApiServer(node_root / request.module.__name__, under_test.AGENT)
    server = Server(with_api, tmp_path_factory.mktemp(request.module.__name__), getattr(request.module, "OPTIONS", ()),
                    getattr(request.module, "KEYS", None)).start()
    yield server
    try:
        server.stop()
    finally:
        if server.process.poll() is None:
            server.kill()
        with_api.close()


@pytest.fixture
def server(cloud):
    """The file's podsandboxd: after each test nothing is scripted any more, and it runs."""
    yield cloud
    cloud.api.clear()
    if cloud.process.poll() is not None:
        cloud.start()


@pytest.fixture
def api(server):
    return server.api


@pytest.fixture
def client(server):
    key = next(iter(server.keys), None)
    return server.client(key)


@pytest.fixture
def fresh(request, node_root, tmp_path):
    """fresh(options…): a podsandboxd of its own for this test, not started yet."""
    made, own_apis = [], []

    def make(*options, api=None, directory=None, **more):
        name = re.sub("[^a-z0-9_]", "-", f"{request.node.name}-{len(made)}")[-60:]
        if api is None:
            api = ApiServer(node_root / name, under_test.AGENT)
            own_apis.append(api)
        made.append(Server(api, directory or tmp_path / f"server-{len(made)}", options, **more))
        return made[-1]
    make.servers = made
    yield make
    failures = []
    for one in reversed(made):
        one.api.clear()
        try:
            one.stop()
        except AssertionError as failure:
            failures.append(failure)
        if one.process and one.process.poll() is None:
            one.kill()
    for one in own_apis:
        one.close()
    if failures:
        raise failures[0]


@pytest.fixture
def sandbox(client):
    """The id of a sandbox that is ready."""
    record = client.create()
    yield record["id"]
    client.delete(record["id"], expect=(202, 204))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        arguments = getattr(item, "funcargs", {})
        servers = [arguments["cloud"]] if "cloud" in arguments else []
        servers += arguments["fresh"].servers if "fresh" in arguments else []
        for one in servers:
            lines = [line for line in one.log().splitlines() if '"status":"200"' not in line]
            report.sections.append(("podsandboxd", "\n".join(lines)[-3000:]))
