"""The drivers that the suite can run against: how each is started, and how a preview is reached from outside.

`session()` is entered once, before a driver's first test. `server()` makes a podsandboxd, not started yet, with what it
needs around it; `end()` ends all of that. PODSANDBOX_DRIVERS names those to be tested; without it, all that can run here.
"""

import os
import shutil
import sys
from contextlib import contextmanager, nullcontext

import server as under_test
from fake_apiserver import ApiServer
from docker_server import DockerServer
from fake_driver import FakeServer
from local_server import LocalServer
from server import ROOT, Server

DOMAIN = "127.0.0.1.nip.io"


class Kubernetes:
    """On the fake API server, whose pods are real agents on this machine."""

    name = "kubernetes"
    session = nullcontext

    @staticmethod
    def can_run():
        return os.geteuid() == 0

    @staticmethod
    def server(directory, node, options=(), keys=None):
        api = ApiServer(node, under_test.AGENT)
        api.node.scripts[None] = pull_and_run
        return OnFakeApi(api, directory, ("--preview-domain", DOMAIN, *options), keys)

    @staticmethod
    def end(server):
        try:
            server.end()
        finally:
            server.api.close()


def pull_and_run(node, pod):
    """As a kubelet does, with one image that is nowhere."""
    image = pod["spec"]["containers"][0]["image"]
    if "does-not-exist" not in image:
        node.run_pod(pod)
    else:
        node.assign(pod)
        for _ in range(3):
            node.waiting(pod, "ErrImagePull", f'failed to pull image "{image}": rpc error: code = NotFound desc = {image}: not found')
            node.waiting(pod, "ImagePullBackOff", f'Back-off pulling image "{image}"')


class OnFakeApi(Server):
    def fetch(self, id, preview, path="/"):
        """(status, body) of a preview. There is no ingress: from where the Service would come, the pod's address."""
        script = ("import sys, urllib.request as u\na = u.urlopen(sys.argv[1], timeout=5)\n"
                  "sys.stdout.write(f'{a.status} {a.read().decode()}')")
        code, out, err = self.api.node.container(id).run("python3", "-c", script, f"http://10.244.0.2:{preview['port']}{path}")
        assert code == 0, err
        status, _, body = out.decode().partition(" ")
        return int(status), body


class Local:
    """This machine itself."""

    name = "local"
    session = nullcontext

    @staticmethod
    def can_run():
        return shutil.which("bwrap") is not None

    @staticmethod
    def server(directory, _, options=(), keys=None):
        return LocalServer(None, directory, options, keys)

    @staticmethod
    def end(server):
        try:
            server.end()
        finally:
            server.end_boxes()


class Cluster:
    """The Kubernetes driver on a real cluster: through tests/cluster/in-node, or with KUBECONFIG set."""

    name = "cluster"

    @staticmethod
    def can_run():
        return False  # when it is asked for by name

    @staticmethod
    @contextmanager
    def session():
        sys.path.insert(0, str(ROOT / "tests/cluster"))
        import cluster
        with cluster.one_run_at_a_time():
            cluster.sweep_leftovers()
            with cluster.sandboxes_namespace():
                yield

    @staticmethod
    def server(directory, _, options=(), keys=None):
        from cluster import ClusterServer, wait_for_page

        class OnCluster(ClusterServer):
            @staticmethod
            def fetch(_, preview, path="/"):
                answer = wait_for_page(preview["host"], path=path)
                return answer.status_code, answer.content.decode()
        return OnCluster(directory, options, keys)

    @staticmethod
    def end(server):
        try:
            server.end()
        finally:
            server.sweep()


class Docker:
    """A Docker Engine of our own, or, with PODSANDBOX_DOCKER_HOST set, that one, which has the images."""

    name = "docker"
    address = os.environ.get("PODSANDBOX_DOCKER_HOST")

    @staticmethod
    def can_run():
        return False  # when it is asked for by name

    @classmethod
    @contextmanager
    def session(cls):
        if cls.address:
            yield
            return
        sys.path.insert(0, str(ROOT / "tests/docker"))
        import engine
        with engine.TemporaryEngine() as own:
            cls.address = own.url
            yield
        cls.address = None

    @classmethod
    def server(cls, directory, _, options=(), keys=None):
        return DockerServer(cls.address, directory, options, keys)

    @staticmethod
    def end(server):
        try:
            server.end()
        finally:
            server.end_boxes()


class Fake:
    """No substrate at all."""

    name = "fake"
    session = nullcontext

    @staticmethod
    def can_run():
        return True

    @staticmethod
    def server(directory, _, options=(), keys=None):
        return FakeServer(directory, options, keys)

    end = staticmethod(Server.end)


ALL = {driver.name: driver for driver in (Kubernetes, Local, Fake, Cluster, Docker)}


def chosen():
    names = os.environ.get("PODSANDBOX_DRIVERS", "").replace(",", " ").split()
    return [ALL[name] for name in names] or [driver for driver in ALL.values() if driver.can_run()]
