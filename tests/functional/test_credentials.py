"""How the server signs in, and whom it believes: TLS, client certificates, token files and plugins. B43, and B02 over TLS."""

import base64
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fake_tls import Authority, TlsFront
from server import wait_until


@pytest.fixture
def secured(fresh, tmp_path):
    """secured(…): a server, not started, whose cluster speaks TLS with a certificate of `authority`."""
    servers = []

    def make(alternative="IP:127.0.0.1", client_certificates=False):
        server = fresh()
        server.authority = Authority(tmp_path / "authority")
        server.front = TlsFront(server.api.port, *server.authority.issue("apiserver", alternative),
                                server.authority if client_certificates else None)
        servers.append(server)
        return server
    yield make
    for server in servers:
        server.stop()  # before its cluster goes away
        server.front.close()


def configure(server, user=None, **cluster):
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "fake",
              "clusters": [{"name": "fake", "cluster": {"server": f"https://127.0.0.1:{server.front.port}", **cluster}}],
              "users": [{"name": "fake", "user": user or {"token": "kubeconfig-token"}}],
              "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}]}
    server.kubeconfig.write_text(json.dumps(config))


def whole_job(server):
    client = server.client()
    client.create("tls")
    assert client.exec("tls", ["echo", "hi"])["stdout"] == "hi\n"
    data = os.urandom(3 << 20)
    client.put("tls", "f", data)
    assert client.read("tls", "f") == data
    client.delete("tls")


def test_authority_in_a_file(secured):
    server = secured()
    configure(server, **{"certificate-authority": str(server.authority.cert)})
    whole_job(server.start())


def test_client_certificate_in_the_kubeconfig(secured):
    server = secured(client_certificates=True)
    cert, key = server.authority.issue("admin", "DNS:admin")

    def data(path):
        return base64.b64encode(path.read_bytes()).decode()
    configure(server, {"client-certificate-data": data(cert), "client-key-data": data(key)},
              **{"certificate-authority-data": data(server.authority.cert)})
    whole_job(server.start())


def refused_by_us(server):
    """The server comes up, is not ready, and says why; no request of it has reached the API server."""
    server.spawn()
    wait_until(lambda: server.answers("/healthz") == 200)

    def said():
        text = server.client().request("GET", "/readyz", 503).text
        return text if "certificate" in text or "SSL" in text else None
    text = wait_until(said, what="the health saying why")
    assert server.api.calls == []
    return text


def test_an_unknown_authority_is_not_believed(secured, tmp_path):
    server = secured()
    configure(server, **{"certificate-authority": str(Authority(tmp_path / "another").cert)})
    refused_by_us(server)
    problem = server.client().create_problem(503, "backend_unavailable", id="no")
    assert problem["retryable"] is True


def test_a_certificate_for_another_name_is_not_believed(secured):
    server = secured("DNS:kubernetes.example")
    configure(server, **{"certificate-authority": str(server.authority.cert)})
    refused_by_us(server)


def test_the_name_to_expect_can_be_given(secured):
    server = secured("DNS:kubernetes.example")
    configure(server, **{"certificate-authority": str(server.authority.cert), "tls-server-name": "kubernetes.example"})
    whole_job(server.start())


def test_verification_can_be_switched_off(secured):
    server = secured("DNS:kubernetes.example")
    configure(server, **{"insecure-skip-tls-verify": True})
    whole_job(server.start())


def test_a_missing_client_certificate_is_said(secured):
    server = secured(client_certificates=True)
    configure(server, **{"certificate-authority": str(server.authority.cert)})
    server.spawn()
    wait_until(lambda: server.answers("/healthz") == 200)
    wait_until(lambda: server.front.refused)
    assert server.client().request("GET", "/readyz").status_code == 503


def test_b43_another_authority_takes_over(secured, tmp_path):
    """The CA bundle is replaced, then the API server's certificate: everything works again by itself."""
    server = secured()
    bundle = tmp_path / "bundle.crt"
    bundle.write_bytes(server.authority.cert.read_bytes())
    configure(server, **{"certificate-authority": str(bundle)})
    server.start()
    client = server.client()
    client.create("ca")
    successor = Authority(tmp_path / "successor")
    (tmp_path / "new.crt").write_bytes(successor.cert.read_bytes())
    os.rename(tmp_path / "new.crt", bundle)
    server.front.use(*successor.issue("apiserver", "IP:127.0.0.1"))
    server.front.end_all()
    wait_until(lambda: client.request("POST", "/v1/sandboxes", json={"id": "ca2"}).status_code == 201, 90, "a create")
    assert client.exec("ca", ["true"])["exit_code"] == 0
    assert client.exec("ca2", ["true"])["exit_code"] == 0


@pytest.mark.parametrize("notify", [True, False], ids=["close_notify", "no close_notify"])
def test_b02_tls_ends_in_the_middle_of_a_command(secured, notify):
    server = secured()
    configure(server, **{"certificate-authority": str(server.authority.cert)})
    server.start()
    client = server.client()
    client.create("cut")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.exec, "cut", "echo a; while [ ! -e go ]; do sleep 0.02; done; echo b; exit 6")
        wait_until(lambda: any("while" in " ".join(line) for line in server.api.node.container("cut").processes()))
        server.front.end_all(notify)
        wait_until(lambda: client.request("PUT", client.file_url("cut", "go"), data=b"").status_code in (200, 201))
        result = answer.result()
    assert result["stdout"] == "a\nb\n" and result["exit_code"] == 6 and result["error"] is None


# --- plugins -------------------------------------------------------------------------------------
PLUGIN = """#!/bin/sh
echo run >>{runs}
cat {credential}
"""


@pytest.fixture
def plugged(fresh, tmp_path):
    """A server whose kubeconfig names a program that prints what lies in `credential`."""
    server = fresh()
    server.runs, server.credential = tmp_path / "runs", tmp_path / "credential"
    plugin = tmp_path / "plugin"
    plugin.write_text(PLUGIN.format(runs=server.runs, credential=server.credential))
    plugin.chmod(0o755)
    server.write_kubeconfig(user={"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "args": ["get"],
                                           "interactiveMode": "Never"}})

    def print_token(token, expires=None):
        status = {"token": token, **({"expirationTimestamp": expires} if expires else {})}
        new = tmp_path / "credential.new"
        new.write_text(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
        new.rename(server.credential)
    server.print_token = print_token
    return server


def test_a_plugin_signs_in_once(plugged):
    plugged.print_token("from-plugin")
    plugged.api.tokens = {"from-plugin"}
    plugged.start()
    client = plugged.client()
    client.create("plug")
    assert client.exec("plug", ["true"])["exit_code"] == 0
    assert plugged.runs.read_text().count("run") == 1
    assert "from-plugin" not in plugged.log()


def test_a_plugin_runs_again_after_a_401(plugged):
    plugged.print_token("first")
    plugged.api.tokens = {"first"}
    plugged.start()
    client = plugged.client()
    client.create("plug")
    plugged.print_token("second")
    plugged.api.tokens = {"second"}
    # not at once when it has just run: a plugin is not started for every request that is refused
    wait_until(lambda: client.request("POST", "/v1/sandboxes", json={"id": "plug2"}).status_code == 201)
    plugged.api.stream("plug").reset()
    assert client.exec("plug", ["true"])["exit_code"] == 0


def test_a_plugin_that_fails_is_said(plugged):
    plugged.spawn()  # the file it prints is not there
    wait_until(lambda: plugged.answers("/healthz") == 200)
    wait_until(lambda: "plugin" in plugged.client().request("GET", "/readyz", 503).text, what="the health saying why")
    assert plugged.runs.exists()
    plugged.print_token("late")
    plugged.api.tokens = {"late"}
    plugged.wait_ready()


def test_a_slow_plugin_holds_nobody_else_up(plugged):
    """While it runs, what needs no cluster is answered."""
    gate = plugged.dir / "gate"
    os.mkfifo(gate)
    plugin = plugged.runs.parent / "plugin"
    plugin.write_text(f"#!/bin/sh\ncat {gate} >/dev/null\ncat {plugged.credential}\n")
    plugged.print_token("slow")
    plugged.spawn()
    wait_until(lambda: plugged.answers("/healthz") == 200)
    assert plugged.answers("/readyz") == 503
    opener = threading.Thread(target=lambda: open(gate, "w").close())
    opener.start()
    plugged.wait_ready()
    opener.join()
