"""What a sandbox is like to live in: B37, B38, B40, B41, B47."""

import json
import shutil
import subprocess

import pytest

from cluster import HERE, NAMESPACE, TEST_LABEL, apply, kubectl
from server import SOAK, wait_until


@pytest.fixture(scope="module", params=[None, "gvisor"], ids=["runc", "gvisor"])
def box(request, cloud):
    record = cloud.client().create(ttl=3600, **({"runtime_class": request.param} if request.param else {}))
    yield record["id"]
    cloud.client().delete(record["id"], expect=(202, 204))


def test_b37_orphans_are_reaped(client, box):
    count = 600 if SOAK else 200
    script = f"i=0; while [ $i -lt {count} ]; do (sh -c 'sleep 0.01 &'); i=$((i+1)); done; sleep 1"
    zombies = "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"
    for _ in range(3):
        assert client.exec(box, script, timeout=120)["exit_code"] == 0
        assert wait_until(lambda: int(client.exec(box, zombies)["stdout"]) <= 5, 10, "the orphans being reaped")
    assert client.exec(box, ["true"])["exit_code"] == 0


def test_b40_who_and_where(client, box):
    result = client.exec(box, "id -u; id -g; echo $HOME; cd && pwd; touch $HOME/x /tmp/x /workspace/x && ls -ldn $HOME/x | awk '{print $3}'")
    assert result["stdout"].split() == ["1000", "1000", "/home/sandbox", "/home/sandbox", "1000"], result


@pytest.fixture(scope="module")
def image_of_user(tmp_path_factory):
    """image_of_user(USER): the name of an image of busybox whose configuration has that user."""
    root = tmp_path_factory.mktemp("image")
    (root / "rootfs/bin").mkdir(parents=True)
    (root / "rootfs/etc").mkdir()
    shutil.copy("/bin/busybox", root / "rootfs/bin/busybox")
    for applet in ("sh", "id", "touch", "echo"):
        (root / "rootfs/bin" / applet).symlink_to("busybox")
    (root / "rootfs/etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\napp:x:70:70::/:/bin/sh\n")
    (root / "rootfs/etc/group").write_text("root:x:0:\napp:x:70:\n")

    def make(user):
        image = f"localhost/user-{user.replace(':', '-') or 'none'}:1"
        config = {"Env": ["PATH=/bin"], "Cmd": ["sh"], **({"User": user} if user else {})}
        subprocess.run([HERE / "pack-oci", image, root / "rootfs", json.dumps(config), root / "image.tar"], check=True)
        subprocess.run([HERE / "import", root / "image.tar"], check=True, capture_output=True)
        return image
    return make


@pytest.mark.own_cluster
@pytest.mark.parametrize("user", ["", "0", "1000", "nobody", "app:app", "no-such-user"])
def test_b40_whatever_user_the_image_names(client, image_of_user, user):
    """The kubelet cannot look names up, and refuses root; a sandbox runs as 1000 whatever the image says."""
    id = client.create(image=image_of_user(user))["id"]
    result = client.exec(id, "id -u; id -g; touch x $HOME/x /tmp/x && echo fine")
    assert result["stdout"] == "1000\n1000\nfine\n", result
    client.put(id, "x", b"1")
    assert client.read(id, "x") == b"1"
    client.delete(id)


@pytest.mark.parametrize("command", [
    "cat <<X\nhi\nX", "python3 -c 'import tempfile; tempfile.mkstemp()'", "python3 -m venv --without-pip /workspace/v",
    "git init -q /workspace/r && cd /workspace/r && git status", "mkdir -p $HOME/.cache/x", "mktemp", "bash -lc true"])
def test_b41_tools_work_with_a_read_only_root(client, box, command):
    result = client.exec(box, command)
    assert result["exit_code"] == 0, result["stderr"]


def test_b41_files_of_both_sides(client, box):
    client.put(box, "ours.txt", b"1")
    assert client.exec(box, "echo 2 >>ours.txt && rm ours.txt && echo 3 >theirs.txt")["exit_code"] == 0
    assert client.read(box, "theirs.txt") == b"3\n"
    client.request("DELETE", client.file_url(box, "theirs.txt"), 204)
    refused = client.exec(box, "touch /usr/x")  # gVisor looks at the owner first
    assert refused["exit_code"] == 1 and ("Read-only" in refused["stderr"] or "denied" in refused["stderr"])


def test_b38_a_child_out_of_memory(client):
    id = client.create(resources={"memory": "96Mi", "memory_request": "16Mi"})["id"]
    result = client.exec(id, ["python3", "-c", "b = bytearray(300 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1"])
    record = client.request("GET", f"/v1/sandboxes/{id}", (200, 410)).json()
    record = record.get("sandbox", record)
    if record["state"] == "running":
        assert result["oom_killed"] is True and result["signal"] == "KILL" and result["exit_code"] is None
        assert client.exec(id, ["echo", "usable"])["stdout"] == "usable\n"
    else:  # the kernel killed the whole group
        assert (record["state"], record["reason"]) == ("failed", "oom_killed")
        assert result["error"]["code"] == "sandbox_gone"
    client.delete(id)


def test_b38_more_than_the_storage(client):
    """Past the size of an emptyDir the node evicts the pod; it takes its time to look."""
    id = client.create(resources={"storage": "8Mi"})["id"]
    client.exec(id, ["dd", "if=/dev/zero", "of=/workspace/big", "bs=1M", "count=64"])
    record = client.wait_state(id, "failed", 150)
    assert record["reason"] == "evicted" and "limit" in record["message"].lower()
    client.exec_problem(id, ["true"], 410)
    client.delete(id)


def test_b47_thousands_of_services(server, client):
    """Service links would put variables of each into every pod, until none starts."""
    count = 2500 if SOAK else 300
    services = [{"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}], "clusterIP": "None"},
                 "metadata": {"name": f"dummy-{number}", "namespace": NAMESPACE, "labels": {TEST_LABEL: "dummy"}}}
                for number in range(count)]
    try:
        for start in range(0, count, 250):
            apply({"apiVersion": "v1", "kind": "List", "items": services[start:start + 250]})
        client.create("among", image="localhost/busybox:1")
        result = client.exec("among", "env")
        assert result["exit_code"] == 0 and len(result["stdout"].splitlines()) < 30
        assert "DUMMY" not in result["stdout"]
        client.delete("among")
    finally:
        kubectl("delete", "services", "-n", NAMESPACE, "-l", f"{TEST_LABEL}=dummy", "--wait=false", timeout=300)
