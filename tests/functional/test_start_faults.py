"""Why a sandbox does not start, said at once and in the cluster's words: B39, B40, B42, and the probe of image volumes."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from fake_http import Closed
from fake_node import Node
from server import wait_until

OPTIONS = ("--reap-every", "1")


def never_starts(*steps):
    """A pod that is scheduled and then shows each (reason, message) as state.waiting of its container."""
    def script(node, pod):
        node.assign(pod)
        for reason, message in steps:
            node.waiting(pod, reason, message)
    return script


def failed_record(client, id):
    """A failed one answers GET 200 with its reason, and 410 elsewhere, until it is deleted."""
    record = client.sandbox(id)
    assert record["state"] == "failed" and record["reason"] and record["message"], record
    client.exec_problem(id, ["true"], 410)
    client.delete(id)
    return record


PULL = ("ErrImagePull", 'failed to pull image "nope:1": rpc error: code = NotFound desc = nope:1: not found')
BACKOFF = ("ImagePullBackOff", 'Back-off pulling image "nope:1"')


@pytest.mark.parametrize("name, steps, status, code, words", [
    ("pull", [PULL, BACKOFF, PULL, BACKOFF, PULL, BACKOFF], 502, "image_pull_failed", "nope:1: not found"),
    ("never", [("ErrImageNeverPull", "image is not present with pull policy of Never")], 502, "image_pull_failed", "not present"),
    ("name", [("InvalidImageName", 'couldn\'t parse image name "UPPER"')], 422, "invalid_image", "UPPER"),
    ("config", [("CreateContainerConfigError", "container has runAsNonRoot and image has non-numeric user (app)")], 422,
     "container_config_error", "non-numeric user (app)"),
    ("create", [("CreateContainerError", "exec format error")], 422, "container_start_failed", "exec format error"),
    ("run", [("RunContainerError", "no such device")], 422, "container_start_failed", "no such device"),
    ("crash", [("CrashLoopBackOff", "back-off 10s restarting failed container")], 502, "container_exited", "back-off"),
])
def test_b39_b40_waiting_reasons(client, api, name, steps, status, code, words):
    api.node.scripts[f"sandbox-{name}"] = never_starts(*steps)
    problem = client.create_problem(status, code, id=name)
    assert words in problem["detail"] and problem["category"] == "provision_error" and problem["remediation"], problem
    assert api.get("pods", f"sandbox-{name}") is None
    assert failed_record(client, name)["reason"] == code


@pytest.mark.parametrize("how", ["refused", "held"])
def test_a_failed_one_that_cannot_be_removed_answers_why_it_failed(client, api, how):
    api.node.scripts["sandbox-stays"] = never_starts(("InvalidImageName", 'couldn\'t parse image name "UPPER"'))
    fault = None
    if how == "refused":
        fault = api.refuse(500, "etcd is slow", verb="delete", kind="pods", times=None)
    else:
        api.hold_terminating("stays")
    begun = len(api.seen("delete", "pods", "sandbox-stays"))
    problem = client.create_problem(422, "invalid_image", id="stays")
    tries = len(api.seen("delete", "pods", "sandbox-stays")) - begun
    assert 1 <= tries <= 2, "it has waited for the next tries, which come after 1, 3 and 7 seconds"
    assert "UPPER" in problem["detail"] and problem["sandbox"]["state"] == "failed"
    if fault:
        api.faults.remove(fault)
    else:
        api.release("stays")
    wait_until(lambda: api.get("pods", "sandbox-stays") is None, what="the next try")
    client.delete("stays")


@pytest.mark.parametrize("name, reason, message, status, code", [
    ("evict", "Evicted", "The node was low on resource: memory.", 503, "evicted"),
    ("node", "NodeLost", "Node node-1 which was running pod is unresponsive", 503, "node_lost"),
    ("affin", "NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed", 503, "unschedulable"),
    ("cpu", "OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu", 503, "unschedulable"),
])
def test_b39_pod_failed(client, api, name, reason, message, status, code):
    def script(node, pod):
        node.assign(pod)
        node.phase(pod, "Failed", reason, message)
    api.node.scripts[f"sandbox-{name}"] = script
    problem = client.create_problem(status, None, id=name)
    assert problem["code"] == code and message in problem["detail"], problem
    assert api.get("pods", f"sandbox-{name}") is None
    client.delete(name)


@pytest.mark.parametrize("name, code, reason, want", [
    ("oom", 137, "OOMKilled", "oom_killed"), ("err", 1, "Error", "container_exited"), ("start", 128, "StartError", "container_start_failed"),
])
def test_b39_container_terminated(client, api, name, code, reason, want):
    def script(node, pod):
        node.assign(pod)
        node.ended(pod, code, reason, "containerd://x", "its last words")
    api.node.scripts[f"sandbox-{name}"] = script
    problem = client.create_problem((422, 502), None, id=name) if want == "container_start_failed" else \
        client.create_problem(502, want, id=name)
    assert problem["code"] == want and str(code) in problem["detail"] and "last words" in problem["detail"], problem
    assert api.get("pods", f"sandbox-{name}") is None
    client.delete(name)


def test_b39_pod_succeeded(client, api):
    """A pod that ended well before it was a sandbox is none."""
    def script(node, pod):
        node.assign(pod)
        node.phase(pod, "Succeeded")
    api.node.scripts["sandbox-well"] = script
    problem = client.create_problem(502, "container_exited", id="well")
    assert problem["category"] == "provision_error", problem
    assert api.get("pods", "sandbox-well") is None
    client.delete("well")


def test_b39_one_bad_pull_is_not_a_failure(client, api):
    def script(node, pod):
        node.assign(pod)
        node.waiting(pod, *PULL)
        node.waiting(pod, "ContainerCreating")
        node.start(pod)
    api.node.scripts["sandbox-again"] = script
    assert client.create("again")["state"] == "running"
    client.delete("again")


def test_b39_a_slow_pull_is_waited_for(client, api):
    go, assigned = Event(), Event()

    def script(node, pod):
        node.assign(pod)
        assigned.set()
        go.wait()
        node.start(pod)
    api.node.scripts["sandbox-slow"] = script
    client.create("slow", expect=202, wait=False)
    assigned.wait(30)
    assert client.sandbox("slow")["state"] == "creating"
    go.set()
    client.wait_state("slow", "running")
    client.delete("slow")


def test_b39_unschedulable(fresh):
    server = fresh("--unschedulable-after", "1").start()
    client, api = server.client(), server.api
    api.node.scripts[None] = lambda node, pod: node.unschedulable(pod)
    problem = client.create_problem(503, "unschedulable", id="big")
    assert "Insufficient cpu" in problem["detail"] and problem["retryable"] is True and problem["headers"]["Retry-After"]
    assert api.get("pods", "sandbox-big") is None
    assert failed_record(client, "big")["reason"] == "unschedulable"


def test_b39_scheduled_later(client, api):
    def script(node, pod):
        node.unschedulable(pod)
        node.assign(pod)
        node.start(pod)
    api.node.scripts["sandbox-room"] = script
    assert client.create("room")["state"] == "running"
    client.delete("room")


def test_b39_ready_timeout_says_what_was_waited_for(client, api):
    api.node.scripts["sandbox-stuck"] = never_starts(("ContainerCreating", None))
    problem = client.create_problem(504, "ready_timeout", id="stuck", ready_timeout=1)
    assert problem["category"] == "provision_error" and problem["retryable"] is True
    assert api.get("pods", "sandbox-stuck") is None
    assert failed_record(client, "stuck")["reason"] == "ready_timeout"


@pytest.mark.parametrize("name, reason, message, want", [
    ("handler", "FailedCreatePodSandBox", 'Failed to create pod sandbox: rpc error: no runtime for "runsc" is configured',
     "runtime_handler_missing"),
    ("mount", "FailedMount", 'MountVolume.SetUp failed for volume "x": secret "x" not found', "volume_mount_failed"),
    ("cni", "FailedCreatePodSandBox", 'Failed to create pod sandbox: plugin type="bridge" failed (add): network is down', "network_setup_failed"),
])
def test_b39_what_only_events_tell(client, api, name, reason, message, want):
    def script(node, pod):
        node.assign(pod)
        for count in range(1, 5):
            api.event(pod, reason, message, count)
    api.node.scripts[f"sandbox-{name}"] = script
    problem = client.create_problem((422, 503), want, id=name)
    assert message in problem["detail"]
    assert api.get("pods", f"sandbox-{name}") is None
    client.delete(name)


@pytest.mark.parametrize("cause", ["handler", "room"])
def test_a_probe_that_cannot_start_is_not_waited_for(client, api, cause):
    """The first sandbox of a runtime class is preceded by a probe pod, which has the same trouble."""
    message = 'Failed to create pod sandbox: rpc error: no runtime for "hollow" is configured'
    api.store.add("runtimeclasses", {"metadata": {"name": f"hollow-{cause}"}, "handler": "hollow"})

    def script(node, pod):
        if cause == "room":
            node.unschedulable(pod)
        else:
            node.assign(pod)
            api.event(pod, "FailedCreatePodSandBox", message)
    api.node.scripts[None] = script
    begun = len(api.calls)
    client.create_problem((422, 503), {"handler": "runtime_handler_missing", "room": "unschedulable"}[cause], id="hollow",
                          runtime_class=f"hollow-{cause}")
    made = [call.name for call in api.calls[begun:] if call.verb == "create" and call.kind == "pods" and not call.dry_run]
    assert made[0].startswith("podsandbox-probe-") and made[1:] == ["sandbox-hollow"], made
    looks = [call for call in api.calls[begun:] if call.verb == "get" and call.name == made[0]]
    assert len(looks) < 50, "looked at every 150 ms: the probe has been waited for"
    assert api.get("pods", made[0]) is None and api.get("pods", "sandbox-hollow") is None
    client.delete("hollow")


def test_an_event_that_comes_before_its_pod_counts(client, api):
    """The watch of events may be quicker than that of pods and the answer to the create; it is told once."""
    message = 'Failed to create pod sandbox: rpc error: no runtime for "early" is configured'

    def early(server, connection, call):
        call.body["metadata"]["uid"] = "early-uid"
        server.event(call.body, "FailedCreatePodSandBox", message)
        return False
    api.node.scripts["sandbox-early"] = lambda node, pod: node.assign(pod)
    api.fault(early, verb="create", kind="pods", name="sandbox-early")
    problem = client.create_problem(422, "runtime_handler_missing", id="early", ready_timeout=20)
    assert message in problem["detail"] and api.get("pods", "sandbox-early") is None
    client.delete("early")


def test_removed_while_starting(client, api):
    api.node.scripts["sandbox-pulled"] = lambda node, pod: (node.assign(pod), api.remove("pods", "sandbox-pulled"))
    problem = client.create_problem(410, None, id="pulled")
    assert "removed_externally" in str(problem)


def test_restarted_container_is_not_silently_another(client, api):
    """B38: restartCount above 0 means that what was inside is lost."""
    client.create("reborn")
    pod = api.get("pods", "sandbox-reborn")
    api.node.set_container(pod, {"running": {}}, container_id="containerd://other", restarts=1)
    assert client.wait_state("reborn", "failed")["reason"] == "container_exited"
    client.delete("reborn")


# --- B42: what the API server may say to a POST --------------------------------------------------------
@pytest.mark.parametrize("status, message, want, code", [
    (403, 'pods "sandbox-x" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=5, limited: pods=5', 429, "quota_exceeded"),
    (403, 'pods is forbidden: User "u" cannot create resource "pods" in API group "" in the namespace "sandboxes"', 502, "backend_forbidden"),
    (403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false', 422, "admission_denied"),
    (400, 'admission webhook "x" denied the request: because of why', 422, "admission_denied"),
    (403, 'admission webhook "x" denied the request: because of why', 422, "admission_denied"),
    (500, 'Internal error occurred: failed calling webhook "x": context deadline exceeded', 503, "backend_unavailable"),
    (422, 'Pod "x" is invalid: spec.containers[0].image: Invalid value: "": must not be empty', 422, "invalid_object"),
    (500, "etcdserver: mvcc: database space exceeded", 502, "backend_error"),
    (503, "the server is currently unable to handle the request", 503, "backend_unavailable"),
    (404, 'namespaces "sandboxes" not found', 502, "backend_error"),
])
def test_b42_refusals(client, api, status, message, want, code):
    api.refuse(status, message, verb="create", kind="pods")
    problem = client.create_problem(want, code, id="refused")
    assert message in problem["detail"], problem
    assert problem["retryable"] is (want in (429, 503)), problem
    if want in (429, 503):
        assert int(problem["headers"]["Retry-After"]) >= 1
    record = client.request("GET", "/v1/sandboxes/refused").json()
    assert record.get("state") != "creating"
    assert api.get("pods", "sandbox-refused") is None
    client.delete("refused")
    assert client.create("refused")["state"] == "running"
    client.delete("refused")


def test_b42_throttled_once(client, api):
    fault = api.refuse(429, "too many requests, please try again later", headers={"Retry-After": "1"}, verb="create", kind="pods")
    began = time.monotonic()
    client.create("patient")
    assert fault.hits == 1
    tries = [call.time for call in api.seen("create", "pods", "sandbox-patient")]
    assert len(tries) == 2 and tries[1] - tries[0] >= 1 and tries[0] >= began
    client.delete("patient")


def test_b42_throttled_without_end(client, api):
    fault = api.refuse(429, "too many requests", headers={"Retry-After": "1"}, verb="create", kind="pods", times=None)
    problem = client.create_problem(503, "backend_throttled", id="late")
    assert problem["headers"]["Retry-After"] and fault.hits <= 5
    client.delete("late")


def test_b42_many_creates_while_throttled(client, api):
    """A bounded rate towards an API server that asks to slow down."""
    fault = api.refuse(429, "slow down", headers={"Retry-After": "1"}, verb="create", kind="pods", times=None)
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda i: client.request("POST", "/v1/sandboxes", json={"id": f"t-{i}"}).status_code, range(30)))
    assert set(answers) == {503}
    assert fault.hits <= 60
    for i in range(30):
        client.delete(f"t-{i}")


def test_b17_an_answer_without_status_is_a_failure(client, api):
    """B17c: neither nothing, nor half a reply, nor JSON that is none is a success."""
    def nothing(server, connection, call):
        connection.finish()
        connection.reset()
        raise Closed("nothing")

    def garbage(server, connection, call):
        connection.send_reply(201, b"<html>proxy</html>")
        return True
    api.fault(garbage, verb="create", kind="pods")
    response = client.request("POST", "/v1/sandboxes", json={"id": "odd"})
    assert response.status_code in (502, 503), response.text
    client.delete("odd")
    api.fault(nothing, verb="create", kind="pods", times=None)
    assert client.request("POST", "/v1/sandboxes", json={"id": "odd2"}).status_code in (502, 503)
    api.faults.clear()
    client.delete("odd2")


def test_oversize_reply_is_a_named_error(client, api):
    def huge(server, connection, call):
        connection.begin_chunked(201)
        for _ in range(80):
            connection.send_chunk(b"x" * (1 << 20))
        connection.end_chunked()
        return True
    api.fault(huge, verb="create", kind="pods")
    response = client.request("POST", "/v1/sandboxes", json={"id": "huge"})
    assert response.status_code in (502, 503) and "large" in response.json()["detail"], response.text
    client.delete("huge")


def test_every_missing_right_is_named(client, api):
    for verb, kind, act in [("create", "pods", lambda: client.request("POST", "/v1/sandboxes", json={"id": "rights"})),
                            ("get", "pods/exec", lambda: client.request("POST", "/v1/sandboxes", json={"id": "rights2"}))]:
        api.denied.add((verb, kind))
        problem = act().json()
        assert problem["code"] == "backend_forbidden" and f'cannot {verb} resource "{kind}"' in problem["detail"], problem
        api.denied.clear()
    client.delete("rights")
    client.delete("rights2")


# --- how the agent gets in --------------------------------------------------------------------------------
def test_image_volume_is_used_where_it_works(fresh):
    server = fresh().start()
    server.client().create("volume")
    pod = server.api.get("pods", "sandbox-volume")
    assert any("image" in volume for volume in pod["spec"]["volumes"]) and "initContainers" not in pod["spec"]


def test_dropped_image_volumes_mean_an_init_container(fresh):
    server = fresh()
    server.api.image_volumes = "dropped"
    server.start()
    client = server.client()
    client.create("init")
    pod = server.api.get("pods", "sandbox-init")
    assert not any("image" in volume for volume in pod["spec"]["volumes"])
    assert pod["spec"]["initContainers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert client.exec("init", ["echo", "hi"])["stdout"] == "hi\n"


def test_a_node_that_cannot_mount_images_means_an_init_container(fresh):
    server = fresh()
    api = server.api

    def script(node, pod):
        node.assign(pod)
        if any("image" in volume for volume in pod["spec"]["volumes"]):
            for count in range(1, 4):
                node.waiting(pod, "CreateContainerError", "failed to generate container spec: image volumes are not supported")
                api.event(pod, "Failed", "Error: failed to mount image volume", count)
        else:
            node.start(pod)
    api.node.scripts[None] = script
    server.start()
    client = server.client()
    client.create("init")
    assert "initContainers" in api.get("pods", "sandbox-init")["spec"]
    probes = [call for call in api.seen("create", "pods") if call.body["metadata"]["labels"].get("podsandbox.dev/probe")]
    client.create("init2")
    assert len([call for call in api.seen("create", "pods") if call.body["metadata"]["labels"].get("podsandbox.dev/probe")]) == len(probes)
    assert api.all("pods", "podsandbox.dev/probe") == []  # the probe is removed


@pytest.mark.parametrize("delivery", ["init", "image-volume"])
def test_delivery_by_order(fresh, delivery):
    server = fresh("--agent-delivery", delivery).start()
    client = server.client()
    client.create("told")
    spec = server.api.get("pods", "sandbox-told")["spec"]
    assert ("initContainers" in spec) is (delivery == "init")
    assert client.exec("told", ["true"])["exit_code"] == 0


def test_an_injected_sidecar_does_not_matter(client, api):
    """B45: another container in the pod, first in the list, and not ready."""
    def script(node, pod):
        def inject(item):
            item["spec"]["containers"].append({"name": "istio-proxy", "image": "proxy"})
            item["status"]["containerStatuses"] = [{"name": "istio-proxy", "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                                                    "ready": False, "restartCount": 7}]
        api.change("pods", pod, inject)
        Node.run_pod(node, api.get("pods", pod["metadata"]["name"]))
    api.node.scripts["sandbox-mesh"] = script
    client.create("mesh")
    assert client.exec("mesh", ["true"])["exit_code"] == 0
    assert all(call.request.param("container") == "sandbox" for call in api.seen("exec", name="sandbox-mesh"))
    wait_until(lambda: client.sandbox("mesh")["state"] == "running")
    client.delete("mesh")
