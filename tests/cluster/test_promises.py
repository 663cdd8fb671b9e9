"""What the Python packages podsandbox 0.1.0 and dockersandbox 0.1.0 promise in their own tests, held by the REST API.

Each of their tests, by file, and the test of ours that holds the same promise. A name without a file is in this one. Where
theirs pins a way of doing it, ours tests what the way is for; README, "Coming from the Python packages", says what differs.

podsandbox tests/test_kube_sandbox.py
  is_structural_sandbox                                     every_method_has_its_request
  start_creates_labelled_pod_and_waits_ready                test_packages: the_same_names_and_labels; environment_of_the_sandbox…
  start_fails_fast_when_runtime_class_missing               test_causes: a_missing_runtime_class
  start_succeeds_when_runtime_class_present                 runtime_class_only_where_it_is_asked_for
  runtime_class_check_error_…, start_provision_error_…      errors_of_a_create_are_scrubbed
  start_times_out_if_never_ready                            a_create_that_takes_too_long_fails
  wait_ready_terminal_phase_raises                          a_container_that_cannot_start_is_said_at_once
  generated_sandbox_id_when_unset                           an_id_is_made_when_none_is_given
  write_then_read_file_roundtrips                           files_are_relative_to_the_workdir
  write_file_content_is_base64_in_argv_not_raw              content_and_paths_are_never_code
  put_file_streams_content_over_stdin_not_argv              content_is_in_no_argument_list
  put_file_requires_absolute_path                           a_file_has_its_place_and_mode
  read_missing_…, write_file_nonzero_…, list_files_nonzero_ what_cannot_be_done_with_a_file_is_an_error
  put_file_not_landed_raises                                a_file_that_does_not_fit_is_not_written
  list_files_is_workdir_relative_and_excludes_git           listing_is_relative_and_without_git
  exec_applies_workdir_and_env_wrapper                      workdir_and_environment_of_one_command
  exec_output_is_secret_scrubbed                            conformance test_masking; several_secrets_are_all_masked
  exec_timeout_maps_to_sandbox_timeout                      a_timeout_is_said; conformance test_commands: b07_…
  nonzero_exit_is_result_not_error                          the_exit_code_is_the_commands_own
  start_service_launches_and_publishes                      test_main_job: the_main_job; a_service_outlives_…
  start_service_before_start_raises                         no_preview_of_what_does_not_run
  start_service_republishes_replacing_previous              publishing_again_replaces_the_preview
  start_service_launch_failure_raises                       a_service_that_cannot_be_launched_leaves_nothing
  start_service_publish_failure_raises                      a_preview_that_cannot_be_published_leaves_nothing
  stop_removes_pod_and_preview                              test_main_job: the_main_job
  stop_is_idempotent_and_never_raises                       removing_twice_is_no_error
  reaper_remove_and_exists_by_id                            anybody_finds_and_removes_by_id
  stop_swallows_…, remove_swallows_errors_and_ignores_empty test_in_cluster: a_missing_right_is_named; an_empty_id_is_nobody
  exists_false_when_backend_errors                          test_crashes: the_api_server_goes_and_comes_back
podsandbox tests/test_api_backend.py
  create_passthroughs                                       test_main_job: the_main_job
  read_pod_maps_status, read_pod_not_ready_…                not_ready_before_it_can_run_commands
  read_pod_404_is_none                                      anybody_finds_and_removes_by_id
  delete_404_is_swallowed                                   removing_twice_is_no_error
  delete_pod_force_deletes                                  removal_waits_for_no_command
  read_pod_other_…, delete_other_…, …_other_error_reraises  test_in_cluster: a_missing_right_is_named
  runtime_class_exists_…                                    runtime_class_only_where_it_is_asked_for; test_causes
podsandbox tests/test_helpers.py
  exit_code_…                                               the_exit_code_is_the_commands_own; functional test_stream_faults: b02_…
  scrub_skips_empty_secret                                  conformance test_masking: one_character_and_none
  apply_env_and_cwd_…, detached_service_cmd_uses_nohup      workdir_and_environment_of_one_command; a_service_outlives_…
podsandbox tests/test_manifests.py
  pod_is_hardened_by_default                                test_main_job: the_cluster_has_the_pod_as_hardened…; defaults_are_the_packages
  pod_labelled_for_reaper_lookup, service_selects_…,
  ingress_is_subdomain_routed_not_path                      test_packages: the_same_names_and_labels
  preview_host_composition                                  functional test_previews: another_domain
  pod_has_writable_workspace_…, extra_writable_mounts       writable_places_under_a_read_only_root
  runtime_class_omitted_locally_present_in_prod             runtime_class_only_where_it_is_asked_for
  env_injected_into_container                               environment_of_the_sandbox_reaches_every_command
podsandbox tests/test_kind_integration.py                   test_main_job: the_main_job
podsandbox, dockersandbox tests/test_fake_sandbox.py        as above; what was asked for: what_was_asked_for_can_be_read
podsandbox, dockersandbox tests/test_git_recipe.py          the_git_recipe; a_clone_that_fails_says_so
dockersandbox tests/test_docker_sandbox.py
  start_launches_idle_container_and_prepares_workdir        a_workdir_that_the_image_lacks; anybody_finds_and_removes_by_id
  exec_runs_argv_with_workdir_and_env                       workdir_and_environment_of_one_command
  put_file_streams_a_tar_never_an_argv                      content_is_in_no_argument_list; a_file_has_its_place_and_mode
  write_file_base64_encodes_content                         content_and_paths_are_never_code
  output_is_scrubbed                                        conformance test_masking
  stop_is_idempotent                                        removing_twice_is_no_error
  provision_error_when_daemon_rejects_run                   conformance test_sandboxes: an_image_that_is_not_there
"""

import inspect
import re

import pytest

from cluster import DOMAIN, NAMESPACE, apply, get, kubectl, objects_of, pod_of, wait_for_page
from server import ROOT, wait_until

TOKEN = "tok-3n-of-the-promises"
SERVE = ["python3", "-m", "http.server", "8000"]


def url(box, rest=""):
    return f"/v1/sandboxes/{box}{rest}"


# --- the surface ------------------------------------------------------------------------
def test_every_method_has_its_request():
    """Whoever comes from one of the packages finds each method of its sandboxes in the README's table."""
    from dockersandbox import DockerSandbox
    from podsandbox import Sandbox
    table = (ROOT / "README.md").read_text().partition("## Coming from the Python packages")[2].partition("\n## ")[0]
    before = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    methods = {name for kind in (Sandbox, DockerSandbox) for name, _ in inspect.getmembers(kind) if not name.startswith("_")}
    assert len(methods) >= 13
    assert {name for name in methods if not re.search(rf"\b{name}\b", before)} == set()


def test_what_was_asked_for_can_be_read(client, box):
    """The commands, the services and the files of a sandbox, and the image and environment it was started with."""
    before = len(client.get(url(box, "/execs?limit=500"))["items"])
    for cmd in (["true"], ["false"], ["echo", "a b", ""]):
        client.exec(box, cmd)
    items = client.get(url(box, "/execs?limit=500"))["items"]
    assert [item["cmd"] for item in reversed(items)][before:] == [["true"], ["false"], ["echo", "a b", ""]]
    preview = client.post(url(box, "/previews"), {"command": SERVE, "port": 8000}, 201)
    assert client.get(url(box, f"/execs/{preview['exec']}"))["cmd"] == SERVE
    client.request("DELETE", url(box, "/previews/8000"), 204)
    assert client.sandbox(box)["image"] == "localhost/python:1"


# --- start -------------------------------------------------------------------------------
def test_environment_of_the_sandbox_reaches_every_command(client):
    id = client.create(env={"FOO": "bar", "TOKEN": TOKEN}, secrets=[TOKEN])["id"]
    assert client.exec(id, ["printenv", "FOO"])["stdout"] == "bar\n"
    assert client.exec(id, ["printenv", "FOO"], env={"FOO": "baz"})["stdout"] == "baz\n"
    assert client.exec(id, ["printenv", "FOO"])["stdout"] == "bar\n"
    preview = client.post(url(id, "/previews"), {"command": ["sh", "-c", "echo $FOO >foo; exec python3 -m http.server 8000"],
                                                 "port": 8000}, 201)
    assert preview["state"] == "ready" and client.read(id, "foo") == b"bar\n"
    said = kubectl("get", "pods", "-n", NAMESPACE, f"sandbox-{id}", "-o", "yaml").stdout
    assert TOKEN not in said and "FOO" not in said
    client.delete(id)


def test_runtime_class_only_where_it_is_asked_for(client):
    plain = client.create(image="localhost/busybox:1")["id"]
    guarded = client.create(image="localhost/busybox:1", runtime_class="gvisor")["id"]
    assert "runtimeClassName" not in pod_of(plain)["spec"] and pod_of(guarded)["spec"]["runtimeClassName"] == "gvisor"
    assert (client.sandbox(plain)["runtime_class"], client.sandbox(guarded)["runtime_class"]) == (None, "gvisor")
    client.delete(plain)
    client.delete(guarded)


@pytest.mark.parametrize("spec, code", [({"image": f"localhost/{TOKEN}:1"}, "image_pull_failed"),
                                        ({"runtime_class": TOKEN}, "runtime_class_missing")], ids=["image", "runtime class"])
def test_errors_of_a_create_are_scrubbed(server, client, spec, code):
    """A secret in what the cluster says of a create."""
    problem = client.create_problem((422, 502), code, id="quoting", secrets=[TOKEN], **spec)
    assert "***" in problem["detail"] and TOKEN not in problem["detail"] and problem["category"] == "provision_error"
    record, events = client.sandbox("quoting"), client.request("GET", url("quoting", "/events")).text
    assert "***" in record["message"] and TOKEN not in record["message"] and TOKEN not in events
    client.delete("quoting", (204, 404))
    assert TOKEN not in server.log()


def test_a_create_that_takes_too_long_fails(fresh):
    """No node has room, and the server would hope for ten minutes; the cause is told rather than the timeout."""
    client = fresh("--unschedulable-after", "600", "--agent-delivery", "image-volume").start().client()
    problem = client.create_problem(503, "unschedulable", id="hasty", ready_timeout=1, resources={"cpu": 8, "cpu_request": 8})
    assert problem["category"] == "provision_error" and "Insufficient cpu" in problem["detail"] and problem["remediation"]
    assert client.sandbox("hasty")["state"] == "failed" and objects_of("hasty") == []
    client.delete("hasty")


def test_a_container_that_cannot_start_is_said_at_once(client):
    """Well before the ready timeout, whose code would be another one."""
    problem = client.create_problem((422, 502), None, id="doomed", ready_timeout=120,
                                    resources={"memory": "1Mi", "memory_request": "1Mi"})
    assert problem["category"] == "provision_error" and problem["code"] != "ready_timeout" and problem["detail"]
    assert client.sandbox("doomed")["state"] == "failed"
    assert wait_until(lambda: objects_of("doomed") == [], 30, "nothing being left")
    client.delete("doomed")


def test_an_id_is_made_when_none_is_given(client):
    ids = [client.post("/v1/sandboxes", {"image": "localhost/busybox:1"}, 201)["id"] for _ in range(2)]
    assert len(set(ids)) == 2
    for id in ids:
        assert re.fullmatch("run-[0-9a-f]{12}", id) and pod_of(id)["metadata"]["name"] == f"sandbox-{id}"
        client.delete(id)


def test_not_ready_before_it_can_run_commands(client):
    """A record says `running` when a command can be run, and not before."""
    record = client.create("early", 202, wait=False)
    assert record["state"] == "creating" and record["ready"] is None
    record = client.wait_state("early", "running")
    assert record["ready"] and client.exec("early", ["true"])["exit_code"] == 0
    client.delete("early")


def test_defaults_are_the_packages(client, box):
    from podsandbox import SandboxConfig
    theirs, ours = SandboxConfig(), client.sandbox(box)
    limits = pod_of(box)["spec"]["containers"][0]["resources"]["limits"]
    assert ours["resources"]["memory"] == limits["memory"] == theirs.memory_limit
    assert ours["resources"]["cpu"] == limits["cpu"] == theirs.cpu_limit
    assert (ours["workdir"], ours["ready_timeout"]) == (theirs.workdir, theirs.ready_timeout)
    assert (ours["run_as_user"], ours["run_as_group"], ours["read_only_root"]) == (1000, 1000, True)


@pytest.mark.parametrize("image", ["localhost/python:1", "localhost/busybox:1"])
def test_a_workdir_that_the_image_lacks(client, image):
    id = client.create(image=image, workdir="/srv/deep/work")["id"]
    result = client.exec(id, "pwd; echo 1 >f; cat f")
    assert (result["stdout"], result["exit_code"]) == ("/srv/deep/work\n1\n", 0), result
    client.put(id, "g", b"2")
    assert client.read(id, "/srv/deep/work/g") == b"2"
    assert client.get(url(id, "/tree?format=paths"))["items"] == ["f", "g"]
    client.delete(id)


def test_writable_places_under_a_read_only_root(client):
    id = client.create(workdir="/work", writable_mounts={"npm": "/home/node/.npm", "tmp": "/tmp"})["id"]
    for place in ("/work", "/tmp", "/home/node/.npm", "/home/sandbox"):
        assert client.exec(id, ["touch", f"{place}/x"])["exit_code"] == 0, place
    for place in ("/", "/usr", "/etc", "/opt", "/home/node", "/root"):
        assert client.exec(id, ["touch", f"{place}/x"])["exit_code"] != 0, place
    client.delete(id)


# --- files -------------------------------------------------------------------------------
def test_files_are_relative_to_the_workdir(client, box):
    client.put(box, "src/deep/app.py", b"print('hi')\n", expect=201)
    assert client.read(box, "src/deep/app.py") == client.read(box, "/workspace/src/deep/app.py") == b"print('hi')\n"
    assert client.exec(box, ["python3", "src/deep/app.py"])["stdout"] == "hi\n"
    client.put(box, "src/deep/app.py", b"", expect=(200, 204))
    assert client.read(box, "src/deep/app.py") == b""
    client.request("DELETE", client.file_url(box, "src", "&recursive=true"), 204)


def test_listing_is_relative_and_without_git(client, box):
    for name in ("l/b.py", "l/sub/a.py", "l/.git/config", "l/sub/.git/HEAD", "l/.gitignore", "l/a.git/kept"):
        client.put(box, name, b"x")
    listed = client.get(url(box, "/tree?path=l&format=paths"))["items"]
    assert listed == ["l/.gitignore", "l/a.git/kept", "l/b.py", "l/sub/a.py"]
    assert set(listed) <= set(client.get(url(box, "/tree?format=paths"))["items"])
    assert client.get(url(box, "/tree?path=/workspace/l/sub&format=paths"))["items"] == ["l/sub/a.py"]
    client.request("DELETE", client.file_url(box, "l", "&recursive=true"), 204)


def test_content_and_paths_are_never_code(client, box):
    nasty = "$(touch /tmp/pwned) `touch /tmp/pwned`; touch /tmp/pwned\n' \" \\ %s \0 & |"
    name = "code/$(touch /tmp/pwned);'\"`touch /tmp/pwned`"
    client.put(box, name, nasty.encode())
    assert client.read(box, name) == nasty.encode()
    assert client.get(url(box, "/tree?path=code&format=paths"))["items"] == [name]
    assert client.exec(box, ["printf", "%s", "$(touch /tmp/pwned); touch /tmp/pwned"])["stdout"] == "$(touch /tmp/pwned); touch /tmp/pwned"
    client.request("DELETE", client.file_url(box, name), 204)
    assert client.exec(box, ["test", "-e", "/tmp/pwned"])["exit_code"] == 1


WATCH = """
import os, sys
word, seen = sys.argv[1][::-1], set()  # reversed, so that this process has it in no argument itself
print("watching", flush=True)
while not os.path.exists("/tmp/enough"):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            seen.add(open(f"/proc/{pid}/cmdline").read() + open(f"/proc/{pid}/environ").read())
        except OSError:
            continue
print(sum(word in line for line in seen), any("a command" in line for line in seen))
"""


def test_content_is_in_no_argument_list(client, box):
    """Somebody inside looks at all processes while files with a secret are written, read and edited."""
    watcher = client.start(box, ["python3", "-c", WATCH, TOKEN[::-1]])
    wait_until(lambda: client.output(box, watcher["id"]).content, 30, "the watcher")
    for number in range(30):
        client.put(box, "/home/sandbox/.npmrc", f"//registry/:_authToken={TOKEN}{number}", more="&mode=0600")
        assert TOKEN.encode() in client.read(box, "/home/sandbox/.npmrc")
    assert client.exec(box, ["sh", "-c", "sleep 1; : a command"])["exit_code"] == 0  # which it does see
    client.put(box, "/tmp/enough", b"")
    assert client.exec_wait(box, watcher["id"])["stdout"] == "watching\n0 True\n"
    client.exec(box, ["rm", "/tmp/enough", "/home/sandbox/.npmrc"])


def test_a_file_has_its_place_and_mode(client, box):
    client.put(box, "/home/sandbox/.config/deep/.npmrc", b"x", more="&mode=0600", expect=201)
    client.put(box, "relative.txt", b"x", more="&mode=0750", expect=201)
    client.put(box, "plain.txt", b"x", expect=201)
    shown = client.exec(box, ["stat", "-c", "%a %u %n", "/home/sandbox/.config/deep/.npmrc", "relative.txt", "plain.txt"])["stdout"]
    assert shown == "600 1000 /home/sandbox/.config/deep/.npmrc\n750 1000 relative.txt\n644 1000 plain.txt\n"
    client.exec(box, ["rm", "-r", "/home/sandbox/.config", "relative.txt", "plain.txt"])


def test_what_cannot_be_done_with_a_file_is_an_error(client, box):
    client.put(box, "/tmp/mine/f", b"x")
    client.exec(box, ["chmod", "0", "/tmp/mine"])
    try:
        for method, path, status, code in (
                ("GET", "nope.txt", 404, "file_not_found"), ("DELETE", "nope.txt", 404, "file_not_found"),
                ("PUT", "/usr/x", 403, "read_only"), ("PUT", "/var/.git-credentials", 403, "read_only"),
                ("PUT", "/tmp/mine/f", 403, "permission_denied"), ("GET", "/tmp/mine/f", 403, "permission_denied"),
                ("GET", "/workspace", 409, "is_directory"), ("PUT", "/workspace", 409, "is_directory")):
            problem = client.problem(method, client.file_url(box, path), status, code, data=b"x" if method == "PUT" else None)
            assert path in problem["detail"] and problem["remediation"], (method, path, problem)
        for path, status in (("nope", 404), ("/tmp/mine", 403), ("/etc/hostname", 409)):
            for more in ("", "&format=paths"):
                assert path in client.problem("GET", url(box, f"/tree?path={path}{more}"), status)["detail"]
    finally:
        client.exec(box, "chmod 700 /tmp/mine; rm -r /tmp/mine")


def test_a_file_that_does_not_fit_is_not_written(client, box):
    """/dev/shm of a pod holds 64 MiB."""
    client.put(box, "/dev/shm/f", b"old")
    client.problem("PUT", client.file_url(box, "/dev/shm/f"), 507, "no_space", data=b"n" * (65 << 20))
    assert client.read(box, "/dev/shm/f") == b"old"
    assert client.exec(box, ["ls", "-A", "/dev/shm"])["stdout"] == "f\n"
    client.exec(box, ["rm", "/dev/shm/f"])


# --- commands ----------------------------------------------------------------------------
def test_workdir_and_environment_of_one_command(client, box):
    client.exec(box, ["mkdir", "-p", "/tmp/o ther;'$(id)"])
    result = client.exec(box, ["sh", "-c", 'pwd; echo "$K"'], workdir="/tmp/o ther;'$(id)", env={"K": "V; $(id) '\""})
    assert result["stdout"] == "/tmp/o ther;'$(id)\nV; $(id) '\"\n"
    assert client.exec(box, ["sh", "-c", 'pwd; echo "$K"'])["stdout"] == "/workspace\n\n"
    client.exec_problem(box, ["true"], 422, "workdir_not_found", workdir="/nowhere")
    client.exec(box, ["rmdir", "/tmp/o ther;'$(id)"])


def test_the_exit_code_is_the_commands_own(client, box):
    """From 0 to 255, with what it wrote, and none of them an error of the request."""
    for code in (0, 1, 2, 7, 126, 127, 128, 130, 137, 254, 255):
        result = client.exec(box, f"echo out; echo nope >&2; exit {code}")
        assert (result["exit_code"], result["stdout"], result["stderr"]) == (code, "out\n", "nope\n")
        assert result["error"] is None and result["signal"] is None
    killed = client.exec(box, "kill -KILL $$")
    assert (killed["exit_code"], killed["signal"]) == (None, "KILL")


def test_a_timeout_is_said(client, box):
    result = client.exec(box, "echo begun; exec sleep 100", timeout=0.5)
    assert (result["timed_out"], result["exit_code"], result["error"]["code"]) == (True, None, "timeout")
    assert result["stdout"] == "begun\n"
    assert client.exec(box, ["true"])["exit_code"] == 0


def test_several_secrets_are_all_masked(client):
    id = client.create(secrets=["1", "2", "", "supersecret", "supersecret-and-more"])["id"]
    assert client.exec(id, ["echo", "a=1 b=2"])["stdout"] == "a=*** b=***\n"
    assert client.exec(id, ["echo", "TOKEN=supersecret-and-more supersecret"])["stdout"] == "TOKEN=*** ***\n"
    assert client.exec(id, ["echo", "nothing to hide"])["stdout"] == "nothing to hide\n"
    client.delete(id)


# --- previews ------------------------------------------------------------------------------
def test_no_preview_of_what_does_not_run(client):
    body = {"command": SERVE, "port": 8000}
    client.problem("POST", url("never-was", "/previews"), 404, "not_found", json=body)
    client.create("short-lived", image="localhost/busybox:1")
    client.delete("short-lived")
    client.problem("POST", url("short-lived", "/previews"), 410, "gone", json=body)
    assert objects_of("never-was") == objects_of("short-lived") == []


def test_publishing_again_replaces_the_preview(client):
    """On the same port; another port is a further preview, with a host of its own."""
    client.create("shop")
    for word in ("one", "two"):
        client.put("shop", f"{word}/index.html", word.encode())
    first = client.post("/v1/sandboxes/shop/previews", {"command": [*SERVE, "-d", "one"], "port": 8000}, 201)
    assert (first["url"], first["service"], first["ingress"]) == (f"http://shop.{DOMAIN}/", "preview-shop", "preview-shop")
    assert wait_for_page(first["host"]).text == "one"
    second = client.post("/v1/sandboxes/shop/previews", {"command": [*SERVE, "-d", "two"], "port": 8000, "subdomain": "v2"}, 201)
    assert second["url"] == f"http://v2.{DOMAIN}/" and wait_for_page(second["host"]).text == "two"
    wait_for_page(first["host"], 404)
    assert get("ingress", "-n", NAMESPACE, "preview-shop")["spec"]["rules"][0]["host"] == f"v2.{DOMAIN}"
    assert client.get(url("shop", f"/execs/{first['exec']}"))["state"] == "exited"
    assert [item["port"] for item in client.get(url("shop", "/previews"))["items"]] == [8000]
    client.delete("shop")


def test_a_service_outlives_the_request_and_the_timeout_of_commands(fresh):
    client = fresh("--exec-timeout", "1").start().client()
    client.create("serving")
    preview = client.post(url("serving", "/previews"), {"command": SERVE, "port": 8000}, 201)
    assert client.exec("serving", ["sleep", "60"])["timed_out"]
    assert client.get(url("serving", f"/execs/{preview['exec']}"))["state"] == "running"
    assert wait_for_page(preview["host"])
    client.delete("serving")


@pytest.mark.parametrize("command, words", [(["no-such-server"], "No such file"),
                                            (["sh", "-c", "echo cannot start >&2; exit 1"], "cannot start")], ids=["missing", "fails"])
def test_a_service_that_cannot_be_launched_leaves_nothing(client, box, command, words):
    problem = client.problem("POST", url(box, "/previews"), 502, "service_failed", json={"command": command, "port": 8000})
    assert problem["category"] == "service_error" and words in problem["detail"]
    assert objects_of(box) == [f"Pod/sandbox-{box}"] and client.get(url(box, "/previews"))["items"] == []


def test_a_preview_that_cannot_be_published_leaves_nothing(client):
    """A Service of its name is somebody else's."""
    client.create("taken")
    apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "preview-taken", "namespace": NAMESPACE},
           "spec": {"ports": [{"port": 1}]}})
    try:
        problem = client.problem("POST", url("taken", "/previews"), 409, json={"command": SERVE, "port": 8000})
        assert "Service named 'preview-taken'" in problem["detail"], problem
        assert objects_of("taken") == ["Pod/sandbox-taken"]
        assert wait_until(lambda: client.sandbox("taken")["running_execs"] == 0, 20, "the command's end") is True
        client.delete("taken")
        assert get("service", "-n", NAMESPACE, "preview-taken")["spec"]["ports"][0]["port"] == 1
    finally:
        kubectl("delete", "service", "-n", NAMESPACE, "preview-taken")


# --- the end -------------------------------------------------------------------------------
def test_removing_twice_is_no_error(client):
    client.create("twice", image="localhost/busybox:1")
    kubectl("delete", "pod", "-n", NAMESPACE, "sandbox-twice", "--grace-period=0", "--force")
    for _ in range(3):
        client.delete("twice", 204)
    assert objects_of("twice") == []
    client.problem("DELETE", url("never-was"), 404, "not_found")


def test_removal_waits_for_no_command(client):
    """Not for one that ignores TERM either; and the id is free again at once."""
    client.create("stubborn")
    started = client.start("stubborn", "trap '' TERM; while :; do sleep 1; done")
    uid = pod_of("stubborn")["metadata"]["uid"]
    client.delete("stubborn", 204)
    assert objects_of("stubborn") == []
    assert client.exec_wait("stubborn", started["id"])["error"]["code"] == "sandbox_gone"
    client.create("stubborn", image="localhost/busybox:1")
    assert pod_of("stubborn")["metadata"]["uid"] != uid
    client.delete("stubborn", 204)


def test_anybody_finds_and_removes_by_id(fresh):
    """Who never saw the create, and a server that has lost its records, knows it by its id alone."""
    server = fresh().start()
    record = server.client().create("orphaned", image="localhost/busybox:1")
    wait_until(lambda: server.client().sandbox("orphaned")["backend"]["container_id"], 30, "the container's id")
    server.kill()
    server.forget()
    server.start()
    somebody = server.client()
    assert somebody.wait_state("orphaned", "running")["uid"] == record["uid"]
    assert somebody.request("HEAD", url("orphaned")).status_code == 200
    assert somebody.request("HEAD", url("ghost")).status_code == 404
    somebody.delete("orphaned", 204)
    assert somebody.request("HEAD", url("orphaned")).status_code == 410
    assert objects_of("orphaned") == []


def test_an_empty_id_is_nobody(client, box):
    for method in ("GET", "HEAD", "DELETE"):
        assert client.request(method, "/v1/sandboxes/").status_code in (400, 404)
    assert client.request("DELETE", "/v1/sandboxes").status_code == 405
    assert client.sandbox(box)["state"] == "running"


# --- the recipe ----------------------------------------------------------------------------
@pytest.fixture
def repository(client):
    """(sandbox, git): git runs a command of git in a sandbox that holds a bare repository at /tmp/origin.git."""
    id = client.create()["id"]
    made = client.exec(id, """set -e
        git init -q --bare -b main /tmp/origin.git; git init -q -b main /tmp/first; cd /tmp/first; echo hello >README
        git add README; git -c user.name=a -c user.email=a@example.org commit -qm first; git push -q /tmp/origin.git main""")
    assert made["exit_code"] == 0, made["stderr"]
    yield id, lambda *args, **more: client.exec(id, ["git", *args], **more)
    client.delete(id)


def test_the_git_recipe(client, repository):
    """A token is registered and placed in a file, git finds it there, and it is in no output; then clone, change, push."""
    id, git = repository
    client.request("POST", url(id, "/secrets"), 204, json={"values": [TOKEN]})
    client.put(id, "/home/sandbox/.git-credentials", f"https://oauth2:{TOKEN}@git.example.org\n", more="&mode=0600")
    for name, value in (("credential.helper", "store"), ("user.email", "agent@example.org"), ("user.name", "agent")):
        assert git("config", "--global", name, value)["exit_code"] == 0
    found = git("credential", "fill", stdin="protocol=https\nhost=git.example.org\n\n")
    assert found["stdout"] == "protocol=https\nhost=git.example.org\nusername=oauth2\npassword=***\n", found
    assert git("clone", "-q", "--branch", "main", "/tmp/origin.git", "/workspace", workdir="/")["exit_code"] == 0
    baseline = git("rev-parse", "HEAD")["stdout"].strip()
    assert re.fullmatch("[0-9a-f]{40}", baseline) and git("diff", baseline)["stdout"] == ""
    client.put(id, "README", b"hello\nadded line\n")
    assert "+added line\n" in git("diff", baseline)["stdout"]
    for cmd in (["checkout", "-B", "feature/x"], ["add", "-A"], ["commit", "-m", "add thing"], ["push", "-u", "origin", "feature/x"]):
        result = git(*cmd)
        assert result["exit_code"] == 0, result["stderr"]
    head = git("rev-parse", "HEAD")["stdout"]
    assert head.strip() != baseline and git("-C", "/tmp/origin.git", "rev-parse", "feature/x")["stdout"] == head
    listed = client.request("GET", url(id, "/execs?limit=500")).text
    assert TOKEN not in listed and "credential" in listed


def test_a_clone_that_fails_says_so(repository):
    _, git = repository
    result = git("clone", "/tmp/no-such.git", "/workspace", workdir="/")
    assert result["exit_code"] == 128 and "fatal" in result["stderr"] and result["error"] is None
