"""Previews: Service, Ingress and NetworkPolicy, and the port behind them. B48, B54, B58."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fake_http import Closed
from server import wait_until

OPTIONS = ("--preview-domain", "127.0.0.1.nip.io", "--ingress-from", "ingress-nginx:app=controller", "--reap-every", "1")
NAMES = {"services": "Service", "ingresses": "Ingress", "networkpolicies": "NetworkPolicy"}
KINDS = tuple(NAMES)
PORT_SERVER = ["python3", "-m", "http.server", "8000"]


@pytest.fixture
def box(client):
    client.create("web")
    yield "web"
    client.delete("web", expect=(202, 204))


def objects(api, box):
    return {(kind, name) for kind, name in api.sandbox_objects(box) if kind in KINDS}


def fetch(api, box, port, host="10.244.0.2"):
    """From where the Service would come: the pod's address."""
    code, out, _ = api.node.container(box).run(
        "python3", "-c", f"import urllib.request as u; print(u.urlopen('http://{host}:{port}/', timeout=5).status)")
    return out.strip().decode() if code == 0 else None


def test_a_preview(client, api, box):
    made = client.preview(box, command=PORT_SERVER)
    assert made["url"] == "http://web.127.0.0.1.nip.io/" and made["state"] == "ready" and made["port"] == 8000
    assert made["service"] == "preview-web" and made["ingress"] == "preview-web" and made["visibility"] == "public"
    assert fetch(api, box, 8000) == "200"
    pod = api.get("pods", "sandbox-web")
    for kind in KINDS:
        item = api.get(kind, "preview-web")
        owner = item["metadata"]["ownerReferences"]
        assert [one["uid"] for one in owner] == [pod["metadata"]["uid"]] and owner[0]["blockOwnerDeletion"] is False
    service = api.get("services", "preview-web")
    assert service["spec"]["type"] == "ClusterIP"
    assert service["spec"]["selector"]["podsandbox.dev/sandbox-id"] == "web"
    assert [(port["port"], port["targetPort"]) for port in service["spec"]["ports"]] == [(8000, 8000)]
    policy = api.get("networkpolicies", "preview-web")
    assert policy["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": 8000}]
    assert [item["port"] for item in client.get(f"/v1/sandboxes/{box}/previews")["items"]] == [8000]
    client.request("DELETE", f"/v1/sandboxes/{box}/previews/8000", 204)
    assert objects(api, box) == set()
    wait_until(lambda: fetch(api, box, 8000) is None, what="the command's end")
    client.problem("DELETE", f"/v1/sandboxes/{box}/previews/8000", 404)


def test_b54_the_ingress_has_nothing_of_the_caller_but_the_host(client, api, box):
    client.preview(box, command=PORT_SERVER, subdomain="shop")
    ingress = api.get("ingresses", "preview-web")
    assert ingress["spec"] == {
        "ingressClassName": "nginx",
        "rules": [{"host": "shop.127.0.0.1.nip.io", "http": {"paths": [{
            "path": "/", "pathType": "Prefix",
            "backend": {"service": {"name": "preview-web", "port": {"number": 8000}}}}]}}]}
    assert ingress["metadata"].get("annotations", {}) == {}
    assert set(ingress["metadata"]["labels"]) == {"podsandbox.dev/sandbox-id", "podsandbox.dev/instance", "podsandbox.dev/port",
                                                  "app.kubernetes.io/managed-by"}


def test_empty_settings_mean_what_they_say(fresh):
    """An empty class is the cluster's default one, and not nginx; requests follow the limits; there is no ceiling."""
    options = [word for name in ("ingress-class", "cpu-request", "memory-request", "max-cpu", "max-memory") for word in (f"--{name}", "")]
    server = fresh(*options).start()
    client = server.client()
    client.create("plain", resources={"cpu": 64})
    client.preview("plain", command=PORT_SERVER)
    assert "ingressClassName" not in server.api.get("ingresses", "preview-plain")["spec"]
    resources = server.api.get("pods", "sandbox-plain")["spec"]["containers"][0]["resources"]
    assert resources["requests"]["cpu"] == resources["limits"]["cpu"] == "64"
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert client.get("/v1/capabilities")["limits"]["max_cpu"] is None
    client.delete("plain")


def test_private_is_never_silently_public(client, api, box):
    client.problem("POST", f"/v1/sandboxes/{box}/previews", 422, "not_supported", json={"port": 8000, "visibility": "private"})
    client.problem("POST", f"/v1/sandboxes/{box}/previews", 422, json={"port": 8000, "visibility": "odd"})
    assert objects(api, box) == set()


def test_another_domain(fresh):
    server = fresh("--preview-domain", "preview.acme.test", "--preview-scheme", "https", "--preview-port", "8443").start()
    client = server.client()
    client.create("run-9")
    made = client.preview("run-9", wait=False, expect=(201, 202))
    assert made["url"] == "https://run-9.preview.acme.test:8443/" and made["host"] == "run-9.preview.acme.test"
    assert server.api.get("ingresses", "preview-run-9")["spec"]["rules"][0]["host"] == "run-9.preview.acme.test"


def test_further_ports(client, api, box):
    client.preview(box, command=PORT_SERVER)
    second = client.preview(box, port=8001, command=["python3", "-m", "http.server", "8001"])
    assert second["url"] == "http://8001-web.127.0.0.1.nip.io/" and second["service"] == "preview8001-web"
    assert len(objects(api, box)) == 6
    client.delete(box)
    assert objects(api, box) == set()


def test_a_port_on_loopback_only_is_forwarded(client, api, box):
    made = client.preview(box, command=["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"])
    assert made["state"] == "ready"
    assert fetch(api, box, 8000) == "200"


def test_twenty_times_the_same_id(client, api):
    for _ in range(20):
        client.create("cycle")
        client.preview("cycle", command=PORT_SERVER)
        client.delete("cycle")
        assert api.sandbox_objects("cycle") == []


# --- B48: each step fails ---------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code, message, want", [
    (500, "boom", 502), (403, 'services "x" is forbidden: exceeded quota: q', 429), (503, "later", 503),
    (400, 'admission webhook "w" denied the request: why not', 422),
])
def test_b48_a_step_is_refused(client, api, box, kind, code, message, want):
    api.refuse(code, message, verb="create", kind=kind)
    problem = client.problem("POST", f"/v1/sandboxes/{box}/previews", want, json={"port": 8000, "command": PORT_SERVER})
    assert message.split(": ")[-1] in problem["detail"]
    assert objects(api, box) == set()
    assert client.get(f"/v1/sandboxes/{box}/previews")["items"] == []
    wait_until(lambda: not api.node.container(box).processes(), what="the command's end")
    assert client.preview(box, command=PORT_SERVER)["state"] == "ready"  # and it works again


@pytest.mark.parametrize("kind", KINDS)
def test_b48_the_answer_of_a_step_is_lost(client, api, box, kind):
    api.cut(after=True, verb="create", kind=kind)
    response = client.request("POST", f"/v1/sandboxes/{box}/previews", json={"port": 8000, "command": PORT_SERVER})
    assert response.status_code in (200, 201, 503, 502), response.text
    if response.status_code in (200, 201):
        assert len(objects(api, box)) == 3
    else:
        wait_until(lambda: objects(api, box) == set(), what="the sweep of what was left")


@pytest.mark.parametrize("kind", KINDS)
def test_b48_killed_after_a_step(server, client, api, box, kind):
    def crash(api_server, connection, call):
        api_server.perform(call)
        server.kill()
        raise Closed("the client is dead")
    api.fault(crash, verb="create", kind=kind)
    thread = threading.Thread(target=lambda: _ignore(lambda: client.preview(box, command=PORT_SERVER)))
    thread.start()
    thread.join(60)
    wait_until(lambda: server.process.poll() is not None, what="the server's death")
    server.start()
    client.wait_state(box, "running")
    shown = client.get(f"/v1/sandboxes/{box}/previews")["items"]
    if not shown:
        wait_until(lambda: objects(api, box) == set(), what="the sweep of what was left")
    client.delete(box)
    assert objects(api, box) == set()


def _ignore(action):
    try:
        action()
    except Exception:
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_b48_an_object_cannot_be_deleted(client, api, box, kind):
    api.collects_garbage = False
    client.preview(box, command=PORT_SERVER)
    fault = api.refuse(500, "etcd is full", verb="delete", kind=kind)
    problem = client.problem("DELETE", f"/v1/sandboxes/{box}", 502)
    assert fault.hits == 1 and problem["retryable"] and problem["headers"]["Retry-After"], problem
    assert f"{NAMES[kind]} 'preview-{box}'" in problem["detail"] and "etcd is full" in problem["detail"], problem
    assert problem["sandbox"]["state"] == "deleting"
    client.wait_state(box, "gone")  # by itself
    assert api.sandbox_objects(box) == []


@pytest.mark.parametrize("kind", KINDS)
def test_b48_a_delete_is_asked_again_until_all_is_gone(client, api, box, kind):
    api.collects_garbage = False
    client.preview(box, command=PORT_SERVER)
    fault = api.refuse(403, "cannot delete", verb="delete", kind=kind, times=None)
    for _ in range(3):
        assert "cannot delete" in client.problem("DELETE", f"/v1/sandboxes/{box}", 502, "backend_forbidden")["detail"]
        assert client.sandbox(box)["state"] == "deleting"  # the record is true: something is left
    assert [name for name, _ in api.sandbox_objects(box)] == [kind]
    api.faults.remove(fault)
    client.delete(box)
    assert api.sandbox_objects(box) == []


@pytest.mark.parametrize("after", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("kind", KINDS)
def test_b48_the_answer_to_a_removal_is_lost(client, api, box, kind, after):
    """The delete of an object gets no answer, whether it was done or not: nothing stays, and the record does not lie."""
    api.collects_garbage = False
    client.preview(box, command=PORT_SERVER)
    fault = api.cut(after=after, verb="delete", kind=kind)
    response = client.request("DELETE", f"/v1/sandboxes/{box}", (204, 502, 503))
    assert fault.hits == 1
    if response.status_code == 204:
        assert api.sandbox_objects(box) == []
    client.wait_state(box, "gone")
    assert api.sandbox_objects(box) == []


def test_b48_without_garbage_collection_nothing_stays(client, api, box):
    api.collects_garbage = False
    client.preview(box, command=PORT_SERVER)
    client.delete(box)
    assert api.sandbox_objects(box) == []


def test_b48_an_orphan_is_swept(client, api):
    instance = _instance(client, api)
    labels = {"podsandbox.dev/sandbox-id": "nobody", "app.kubernetes.io/managed-by": "podsandbox",
              "podsandbox.dev/instance": instance, "podsandbox.dev/port": "80"}
    for kind in KINDS:
        api.store.add(kind, {"metadata": {"name": "preview-nobody", "labels": labels}, "spec": {"rules": []}})
        api.store.add(kind, {"metadata": {"name": "preview-theirs", "labels": {**labels, "podsandbox.dev/instance": "another"}},
                             "spec": {"rules": []}})
    wait_until(lambda: not any(api.get(kind, "preview-nobody") for kind in KINDS), what="the sweep")
    assert all(api.get(kind, "preview-theirs") for kind in KINDS)
    for kind in KINDS:
        api.remove(kind, "preview-theirs")


def _instance(client, api):
    client.create("who")
    label = api.get("pods", "sandbox-who")["metadata"]["labels"]["podsandbox.dev/instance"]
    client.delete("who")
    return label


@pytest.mark.parametrize("kind", KINDS)
def test_killed_while_publishing(server, client, api, box, kind):
    """The command runs and is on record with its preview: the next server completes what was begun."""
    held = api.hold(verb="create", kind=kind)
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(_ignore, lambda: client.preview(box, command=PORT_SERVER))
        held.wait()
        wait_until(lambda: fetch(api, box, 8000) == "200", what="the command serving")
        server.kill()
        api.faults.remove(held)
        held.gate.open()
        lost.result()
    server.start()
    item = wait_until(lambda: next((one for one in client.get(f"/v1/sandboxes/{box}/previews")["items"] if one["state"] == "ready"), None))
    assert item["service"] == item["ingress"] == f"preview-{box}" and len(objects(api, box)) == 3
    assert client.get(f"/v1/sandboxes/{box}/execs/{item['exec']}")["state"] == "running"
    client.request("DELETE", f"/v1/sandboxes/{box}/previews/8000", 204)
    wait_until(lambda: fetch(api, box, 8000) is None, what="the command's end")
    assert objects(api, box) == set()


def test_killed_between_adoption_and_the_look_for_previews(server, client, api, box):
    client.preview(box, command=PORT_SERVER)
    server.stop()
    server.forget()
    held = api.hold(verb="list", kind="services", times=None)
    server.start()
    client.wait_state(box, "running")
    held.wait()
    server.kill()
    api.faults.remove(held)
    held.gate.open()
    server.start()
    item = wait_until(lambda: client.get(f"/v1/sandboxes/{box}/previews")["items"])[0]
    client.post("/v1/admin/reap")
    assert item["port"] == 8000 and item["url"] == f"http://{box}.127.0.0.1.nip.io/" and len(objects(api, box)) == 3
    record = client.get(f"/v1/sandboxes/{box}/execs/1")
    assert record["state"] == "running" and record["on_disconnect"] == "keep"
    assert fetch(api, box, 8000) == "200"


def test_previews_survive_a_restart_and_the_loss_of_the_store(server, client, api, box):
    client.preview(box, command=PORT_SERVER, subdomain="stays")
    for empty in (False, True):
        server.restart(empty_store=empty)
        client.wait_state(box, "running")
        items = wait_until(lambda: client.get(f"/v1/sandboxes/{box}/previews")["items"])
        assert items[0]["url"] == "http://stays.127.0.0.1.nip.io/" and items[0]["port"] == 8000
        assert fetch(api, box, 8000) == "200"
        assert len(objects(api, box)) == 3
