"""podsandboxd with the docker driver: its sandboxes are containers of an engine."""

import uuid
from urllib.parse import urlsplit

import requests

from docker_api import Api
from server import Server


class DockerServer(Server):
    def __init__(self, address, directory, options=(), keys=None, env=None):
        self.address = address
        self.instance = f"test-{uuid.uuid4().hex[:12]}"
        super().__init__(None, directory, options, keys, env)

    def write_kubeconfig(self, user=None, server=None):
        """There is no cluster."""

    def driver_options(self):
        return ["--driver", "docker", "--docker-host", self.address, "--instance", self.instance]

    @property
    def engine(self):
        return Api(self.address.removeprefix("unix://"))

    def fetch(self, _, preview, path="/"):
        """(status, body) of a preview: the server itself serves it."""
        answer = requests.get(self.url + path, headers={"Host": urlsplit(preview["url"]).netloc}, timeout=5)
        return answer.status_code, answer.content.decode()

    def boxes(self):
        """The names of what there is."""
        return sorted(item["Names"][0].strip("/") for item in self.engine.containers(f"podsandbox.dev/instance={self.instance}"))

    def end_boxes(self):
        """What a test has left running, after the server's end: containers outlive it."""
        for name in self.boxes():
            self.engine.remove(name)
