"""Everything that can go wrong at the start has its own code, the cluster's own words and a remedy, is told as soon as it
is known (the ready timeout of these creates is two minutes, and its code would be `ready_timeout`), and leaves no pod."""

from cluster import TEST_LABEL, apply, get, kubectl, namespace, objects_of
from server import wait_until

MISSING_IMAGE = "localhost/no-such-image:1"


def must_fail(server, status, code, *words, id="wrong", **spec):
    """The create's problem and the record that stays; nothing else does."""
    client = server.client()
    problem = client.create_problem(status, code, id=id, ready_timeout=120, **spec)
    for word in words:
        assert word in problem["detail"], problem["detail"]
    assert len(problem["remediation"]) > 10 and problem["category"] == "provision_error"
    assert wait_until(lambda: objects_of(id, server.namespace) == [], 15, "nothing being left")
    return problem


def failed_record(server, code, id="wrong"):
    record = server.client().sandbox(id)
    assert (record["state"], record["reason"]) == ("failed", code) and record["message"]
    server.client().delete(id)


def test_an_image_that_may_not_be_pulled(server):
    must_fail(server, 502, "image_pull_failed", MISSING_IMAGE, image=MISSING_IMAGE, image_pull_policy="Never")
    failed_record(server, "image_pull_failed")


def test_a_bad_image_name(server):
    problem = server.client().create_problem(422, id="wrong", image="localhost/Upper_Case:1")
    assert problem["code"] == "invalid_image" and "Upper_Case" in problem["detail"]
    assert objects_of("wrong", server.namespace) == []


def test_no_node_has_room(server):
    must_fail(server, 503, "unschedulable", "Insufficient cpu", resources={"cpu": 8, "cpu_request": 8})
    failed_record(server, "unschedulable")


def test_a_missing_runtime_class(server):
    must_fail(server, 422, "runtime_class_missing", "no-such-class", runtime_class="no-such-class")


def test_a_runtime_class_without_its_handler(server):
    apply({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "no-such-handler",
           "metadata": {"name": "cluster-tests-hollow", "labels": {TEST_LABEL: "1"}}})
    try:
        must_fail(server, 422, "runtime_handler_missing", "no-such-handler", runtime_class="cluster-tests-hollow")
    finally:
        kubectl("delete", "runtimeclass", "cluster-tests-hollow")
    failed_record(server, "runtime_handler_missing")


def test_a_used_up_quota(fresh):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    with namespace(quota) as name:
        # The quota counts the probe of the delivery too; it must not be in the sandbox's way.
        server = fresh("--agent-delivery", "image-volume", namespace=name).start()
        client = server.client()
        wait_until(lambda: get("resourcequota", "-n", name, "few").get("status", {}).get("used"), 30, "the quota being counted")
        client.create("first")
        problem = must_fail(server, 429, "quota_exceeded", "exceeded quota: few")
        assert problem["retryable"] and int(problem["headers"]["Retry-After"]) >= 1
        client.delete("first")
        wait_until(lambda: get("resourcequota", "-n", name, "few")["status"]["used"]["pods"] == "0", 60, "the quota being free")
        client.create("first")
        client.delete("first")


POLICY = [{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
           "metadata": {"name": "cluster-tests-never", "labels": {TEST_LABEL: "1"}},
           "spec": {"failurePolicy": "Fail",
                    "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                                                            "resources": ["pods"]}]},
                    "validations": [{"expression": "!object.spec.containers.exists(c, c.image.contains('busybox'))",
                                     "message": "images of busybox are out of fashion"}]}},
          {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
           "metadata": {"name": "cluster-tests-never", "labels": {TEST_LABEL: "1"}},
           "spec": {"policyName": "cluster-tests-never", "validationActions": ["Deny"], "matchResources":
                    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": None}}}}}]


def test_a_denied_admission(fresh):
    with namespace() as name:
        server = fresh(namespace=name).start()
        POLICY[1]["spec"]["matchResources"]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] = name
        apply(*POLICY)
        try:
            def in_force():
                done = kubectl("run", "try", "-n", name, "--image=localhost/busybox:1", "--dry-run=server", check=False)
                return "out of fashion" in done.stderr
            wait_until(in_force, 60, "the policy being in force")
            must_fail(server, 422, "admission_denied", "images of busybox are out of fashion", image="localhost/busybox:1")
        finally:
            kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "cluster-tests-never")


def test_a_namespace_that_does_not_exist(fresh):
    server = fresh(namespace="cluster-tests-no-such-namespace").start()
    problem = server.client().create_problem(502, id="wrong")
    assert "cluster-tests-no-such-namespace" in problem["detail"], problem


def test_a_dry_run_asks_the_cluster(server):
    client = server.client()
    answer = client.post("/v1/sandboxes?dry_run=true", {"id": "dry", "image": "localhost/busybox:1"}, 200)
    assert answer["dry_run"] is True and answer["id"] == "dry" and answer["spec"]["ttl"] == 3600
    client.problem("GET", "/v1/sandboxes/dry", 404)
    client.problem("POST", "/v1/sandboxes?dry_run=true", 422, "runtime_class_missing", json={"runtime_class": "no-such-class"})
    assert objects_of("dry") == []


def test_b40_whoever_the_image_wants_to_be(server):
    """uid 1000 without a passwd entry has a HOME it can write; a uid of root is refused by us already."""
    client = server.client()
    id = client.create(image="localhost/distroless:1")["id"]
    client.put(id, "/home/sandbox/x", b"1")
    client.delete(id)
    assert "run_as_user" in client.create_problem(400, run_as_user=0)["detail"]
