"""Requests to a container engine, beside those of the server under test."""

import json
import socket
from urllib.parse import quote

import requests
import requests.adapters
import urllib3


class UnixConnection(urllib3.connection.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("docker", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class UnixPool(urllib3.connectionpool.HTTPConnectionPool):
    def __init__(self, path):
        super().__init__("docker")
        self.path = path

    def _new_conn(self):
        return UnixConnection(self.path, 60)


class UnixAdapter(requests.adapters.HTTPAdapter):
    def __init__(self, path):
        super().__init__()
        self.unix_pool = UnixPool(path)

    def get_connection(self, *_, **__):
        return self.unix_pool

    get_connection_with_tls_context = get_connection


class Api:
    """Requests to an engine, beside those of the server under test."""

    def __init__(self, path):
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.mount("http://docker", UnixAdapter(str(path)))

    def request(self, method, path, expect=(200, 201, 204), **options):
        answer = self.session.request(method, "http://docker" + path, timeout=120, **options)
        assert answer.status_code in expect, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer

    def get(self, path):
        return self.request("GET", path).json()

    def containers(self, *labels):
        """Every one that carries these labels: NAME=VALUE."""
        return self.get(f"/v1.41/containers/json?all=true&filters={quote(json.dumps({'label': labels}))}")

    def container(self, id):
        """What the engine says of the container of a sandbox."""
        return self.get(f"/v1.41/containers/sandbox-{id}/json")

    def remove(self, container):
        self.request("DELETE", f"/v1.41/containers/{container}?force=true&v=true", (204, 404, 409))
