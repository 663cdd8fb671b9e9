"""podsandboxd with the fake driver."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import json

from server import Server


class FakeServer(Server):
    """There is no substrate, and so no one to fake."""

    image = "made-up:1"

    def __init__(self, directory, options=(), keys=None):
        super().__init__(None, directory, options, keys)

    def write_kubeconfig(self, user=None, server=None):
        """None is needed."""

    def driver_options(self):
        return ["--driver", "fake"]


def rules(client, *rules):
    return client.request("PUT", "/v1/fake/replies", 200, json={"rules": list(rules)}).json()["rules"]


def reply(client, match, *replies, **more):
    """The only rule."""
    return rules(client, {"match": match, "replies": list(replies), **more})


def calls(client, sandbox=None, type=None):
    """All pages; without what differs from run to run."""
    found, after = [], 0
    while after is not None:
        query = "".join(f"&{name}={value}" for name, value in (("sandbox", sandbox), ("type", type)) if value)
        page = client.get(f"/v1/fake/calls?after={after}{query}")
        found, after = found + page["items"], page["next"]
    assert [call["number"] for call in found] == sorted({call["number"] for call in found})
    return [{name: value for name, value in call.items() if name not in ("number", "at", "sandbox")} for call in found]


@contextmanager
def answering(answer):
    """A callback's side: ANSWER(call) gives (status, body); yields its URL and the calls that came."""
    came = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            call = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            came.append(call)
            status, body = answer(call)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/exec", came
        finally:
            server.shutdown()
            thread.join()
