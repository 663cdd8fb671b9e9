"""A git server over HTTP that wants a password: `git http-backend` behind Python's own server."""

import base64
import os
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def git(*args, cwd=None):
    """What it said on its output."""
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    return subprocess.run(["git", *who, *args], cwd=cwd, check=True, capture_output=True, text=True).stdout


def make_repository(directory, name, files):
    """A bare one with one commit on main."""
    work, bare = directory / f"{name}-work", directory / f"{name}.git"
    git("init", "--quiet", "--initial-branch=main", work)
    for path, content in files.items():
        (work / path).write_text(content)
    git("add", "--all", cwd=work)
    git("commit", "--quiet", "--message=first", cwd=work)
    git("clone", "--quiet", "--bare", work, bare)
    git("config", "http.receivepack", "true", cwd=bare)
    return bare


@contextmanager
def serving(directory, user, password):
    """Yields the URL below which the repositories of DIRECTORY are."""
    wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.headers.get("Authorization") == wanted:
                self.answer(self.run_backend(self.rfile.read(int(self.headers.get("Content-Length") or 0))))
                return
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def run_backend(self, body):
            path, _, query = self.path.partition("?")
            cgi = {"GIT_PROJECT_ROOT": str(directory), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path, "QUERY_STRING": query,
                   "REQUEST_METHOD": self.command, "REMOTE_USER": user, "REMOTE_ADDR": self.client_address[0],
                   "CONTENT_TYPE": self.headers.get("Content-Type") or "", "CONTENT_LENGTH": str(len(body)),
                   "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
                   "GIT_PROTOCOL": self.headers.get("Git-Protocol") or ""}
            return subprocess.run(["git", "http-backend"], input=body, env={**os.environ, **cgi}, check=True, capture_output=True).stdout

        def answer(self, said):
            head, _, body = said.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """The tests ask what came of it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
