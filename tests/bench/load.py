"""What makes load, and what the proxy is compared with: wrk, nginx, and the program behind both."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import requests

from server import BUILD, free_port, wait_until

APP = BUILD / "tests/bench/bench_app"
SCRIPT = Path(__file__).with_name("wrk.lua")
NGINX = """
worker_processes auto;
pid {directory}/nginx.pid;
error_log {directory}/nginx.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    client_max_body_size 0;
    keepalive_requests 1000000;
    upstream app {{ server 127.0.0.1:{app}; keepalive 64; keepalive_requests 1000000; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://app;
            proxy_http_version 1.1;
            proxy_request_buffering off;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Host $http_host;
            proxy_set_header X-Forwarded-Proto $scheme;
        }}
    }}
}}
"""


def wrk(url, connections, seconds, host=None, body=None, wanted=None):
    """What one thread of wrk measured; every answer must be right."""
    env = {name: value for name, value in (("BODY", body), ("WANTED", wanted)) if value}
    command = ["wrk", "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s", "--timeout", "30s",
               "--script", str(SCRIPT), *(["--header", f"Host: {host}"] if host else []), url]
    said = subprocess.run(command, env={**os.environ, **env}, check=True, capture_output=True, text=True).stdout
    line, = (line for line in said.splitlines() if line.startswith("numbers "))
    seconds, count, size, wrong, p50, p99 = map(float, line.split()[1:])
    assert wrong == 0 and count > 0, f"{url}: {said}"
    return SimpleNamespace(rate=count / seconds, bytes=size / seconds, p50=p50 / 1e6, p99=p99 / 1e6)


def upload(url, file, host=None):
    size = os.stat(file).st_size
    said = subprocess.run(["curl", "--silent", "--show-error", "--fail", "--noproxy", "*", "--header", f"Host: {host or 'localhost'}",
                           "--header", "Expect:", "--upload-file", file, url], check=True, capture_output=True, text=True).stdout
    assert int(said) == size, f"{said} of {size} bytes came through {url}"


@contextmanager
def running(command, url):
    """A process that answers at URL."""
    def answers():
        assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
        try:
            return requests.get(url, timeout=5).ok
        except requests.RequestException:
            return False
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        wait_until(answers, what=f"{command[0]} answering")
        yield url
    finally:
        process.terminate()
        process.wait()


@contextmanager
def app():
    """The program that previews show, outside of any sandbox: its URL."""
    port = free_port()
    with running([str(APP), str(port)], f"http://127.0.0.1:{port}/"):
        yield SimpleNamespace(port=port, url=f"http://127.0.0.1:{port}/")


@contextmanager
def nginx(directory, upstream):
    port = free_port()
    config = directory / "nginx.conf"
    config.write_text(NGINX.format(directory=directory, app=upstream.port, port=port))
    program = next(path for path in ("/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx") if os.access(path, os.X_OK))
    with running([program, "-p", str(directory), "-c", str(config), "-e", "stderr", "-g", "daemon off;"], f"http://127.0.0.1:{port}/1") as url:
        yield url.removesuffix("1")
