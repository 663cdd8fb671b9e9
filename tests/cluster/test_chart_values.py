"""What the chart renders with many sets of values, as the real API server takes it."""

import subprocess

import pytest
import yaml

from chart import CHART, ROOT, flags, helm, rendered
from cluster import NAMESPACE, kubectl
from server import SERVER

GATEWAY_KINDS = {"HTTPRoute", "ServiceMonitor"}  # of definitions that this cluster has not
SETS = {
    "defaults": {},
    "minimal": {"store.persistent": False, "sandboxes.defaultDeny": False, "sandboxes.internet.enabled": False, "rbac.runtimeClasses": False,
                "sandboxes.limitRange.enabled": False, "sandboxes.resourceQuota.enabled": False},
    "proxy": {"preview.mode": "proxy", "preview.domain": "previews.example.org", "preview.scheme": "https", "preview.tlsSecret": "wildcard"},
    "gateway": {"preview.mode": "proxy", "preview.ingress.enabled": False, "preview.httpRoute.enabled": True,
                "preview.httpRoute.parentRefs": [{"name": "edge", "namespace": "gateways"}]},
    "outside": {"ingress.enabled": True, "ingress.host": "api.example.org", "ingress.tlsSecret": "api", "ingress.annotations": {"a/b": "c"},
                "service.type": "NodePort", "service.nodePort": 30080},
    "own secrets": {"secret.existing": "mine", "store.existingClaim": "claim", "imagePullSecrets": ["pull"], "podAnnotations": {"a": "b"}},
    "placed": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}], "priorityClassName": "system-cluster-critical",
               "affinity": {"nodeAffinity": {}}, "resources": {}, "serviceAccount.annotations": {"a/b": "c"}},
    "gvisor": {"sandboxes.runtimeClass": "chart-gvisor", "sandboxes.createRuntimeClass": "runsc", "sandboxes.image": "python:3"},
    "settings": {"settings": {"ttl": 600, "max-output": 1048576, "allow-writable-root": True, "ingress-class": "", "output-quota": "512Mi"},
                 "apiKeys": "# none\n"},
    "networks": {"sandboxes.internet.except": ["203.0.113.0/24", "2001:db8::/32"], "sandboxes.internet.dns.podLabels": {"app": "dns"}},
    "monitored": {"serviceMonitor.enabled": True, "serviceMonitor.labels": {"release": "prometheus"}},
    "long name": {"fullnameOverride": "a-name-that-is-much-longer-than-what-a-label-of-kubernetes-may-be"},
}


def only(items, kind):
    found = [item for item in items if item["kind"] == kind]
    assert len(found) == 1, [item["metadata"]["name"] for item in found]
    return found[0]


def settings(items):
    text = next(item for item in items if item["kind"] == "ConfigMap")["data"]["podsandboxd.conf"]
    return dict(line.split(" = ", 1) if " = " in line else (line.removesuffix(" ="), "") for line in text.splitlines())


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_the_api_server_takes_it(clean_cluster, values):
    """In a dry run, in a namespace that is there."""
    placed = {**values, "sandboxes.namespace": NAMESPACE, "sandboxes.createNamespace": False}
    items = [item for item in rendered(placed, NAMESPACE) if item["kind"] not in GATEWAY_KINDS]
    text = yaml.safe_dump_all(items)
    done = kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text, check=False)
    assert done.returncode == 0 and "would violate" not in done.stderr, done.stderr
    assert len(done.stdout.splitlines()) == len(items)


def test_lint():
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART).stdout


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_the_server_takes_its_settings(values, tmp_path):
    """Each name and value in the file is one that the server knows; what it misses then is its cluster."""
    items = rendered(values)
    text = only(items, "ConfigMap")["data"]["podsandboxd.conf"]
    config = tmp_path / "conf"
    config.write_text(text)
    done = subprocess.run([SERVER, "--config", config, "--listen", "127.0.0.1:0", "--store", tmp_path / "store", "--key-file", tmp_path / "key",
                           "--kubeconfig", tmp_path / "missing"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and f"cannot open {tmp_path}/missing" in done.stderr, done.stderr


def test_values_become_settings():
    told = settings(rendered(SETS["settings"]))
    assert told["ttl"] == "600" and told["max-output"] == "1048576" and told["allow-writable-root"] == "true"
    assert told["ingress-class"] == "" and told["output-quota"] == "512Mi" and told["api-keys-file"].endswith("/api-keys")
    assert told["preview-port"] == "80"
    proxied = settings(rendered(SETS["proxy"]))
    assert (proxied["preview-mode"], proxied["preview-scheme"], proxied["preview-domain"]) == ("proxy", "https", "previews.example.org")
    assert proxied["preview-port"] == "443"
    assert "preview-tls-secret" not in proxied  # the wildcard Ingress has it


def test_previews_by_one_host():
    ingress = only(rendered(SETS["proxy"]), "Ingress")
    assert ingress["spec"]["rules"][0]["host"] == "*.previews.example.org" and ingress["spec"]["tls"][0]["secretName"] == "wildcard"
    route = only(rendered(SETS["gateway"]), "HTTPRoute")
    assert route["spec"]["hostnames"] == ["*.127.0.0.1.nip.io"] and route["spec"]["parentRefs"][0]["name"] == "edge"
    assert not [item for item in rendered(SETS["gateway"]) if item["kind"] == "Ingress"]


def test_monitoring():
    monitor, service = (only(rendered(SETS["monitored"]), kind) for kind in ("ServiceMonitor", "Service"))
    assert monitor["spec"]["endpoints"][0]["path"] == "/metrics" and monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()


@pytest.mark.parametrize("values, named", [
    ({"preview.mode": "tunnel"}, "preview/mode"), ({"service.port": 0}, "service/port"), ({"sandboxes.namespace": "Not_One"}, "sandboxes/namespace"),
    ({"settings": {"Bad Name": 1}}, "Bad Name"), ({"prevew": {}}, "prevew"), ({"image.pullPolicy": "Sometimes"}, "image/pullPolicy"),
    ({"sandboxes.internet.except": ["everything"]}, "except"), ({"ingress.enabled": True}, "ingress.host"),
    ({"sandboxes.createRuntimeClass": "runsc"}, "sandboxes.runtimeClass"),
    ({"preview.mode": "proxy", "preview.httpRoute.enabled": True}, "parentRefs")])
def test_wrong_values_are_named(values, named):
    done = helm("template", "box", CHART, *flags(values), check=False)
    assert done.returncode != 0 and named in done.stderr, done.stderr


def test_plain_manifests_are_the_charts():
    """deploy/manifests.yaml is what scripts/render-manifests makes of the chart as it is."""
    done = subprocess.run([ROOT / "scripts/render-manifests", "-"], capture_output=True, text=True, check=True)
    assert done.stdout == (ROOT / "deploy/manifests.yaml").read_text(), "run scripts/render-manifests"


def test_plain_manifests_are_taken(clean_cluster):
    items = list(yaml.safe_load_all((ROOT / "deploy/manifests.yaml").read_text()))
    assert [item["metadata"]["name"] for item in items if item["kind"] == "Namespace"] == ["podsandbox", "sandboxes"]
    for item in items:  # of namespaces that are not there, since nothing of a dry run is
        if "namespace" in item["metadata"]:
            item["metadata"]["namespace"] = NAMESPACE
    done = kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(items), check=False)
    assert done.returncode == 0, done.stderr
