"""A node for the fake API server: each pod's container is the real agent in namespaces of its own on this machine."""

import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

AGENT_DIR = "/opt/podsandbox"
AGENT = "podsandbox-agent"
IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HERE = Path(__file__).parent


class Spawner:
    """Starts processes from one thread that lives on: PR_SET_PDEATHSIG means the thread, not the process."""

    def __init__(self):
        self.jobs = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while job := self.jobs.get():
            answer, args, options = job
            try:
                answer.put(subprocess.Popen(args, **options))
            except OSError as error:
                answer.put(error)

    def start(self, args, **options):
        answer = queue.SimpleQueue()
        self.jobs.put((answer, ["setpriv", "--pdeathsig", "KILL", *args], options))
        process = answer.get()
        if isinstance(process, OSError):
            raise process
        return process


class Container:
    """The agent as PID 1, with the pod's volumes."""

    def __init__(self, node, pod):
        self.node, self.pod = node, pod
        self.spec = pod["spec"]["containers"][0]
        self.dir = node.dir / pod["metadata"]["uid"]
        self.id = "containerd://" + os.urandom(32).hex()
        self.log = self.dir / "log"
        self.process = None
        self.inner = None  # pid of the agent as this machine sees it
        (self.dir / "root").mkdir(parents=True)

    def volume_dir(self, name):
        path = self.dir / "volumes" / name
        if not path.exists():
            path.mkdir(parents=True)
            group = self.pod["spec"].get("securityContext", {}).get("fsGroup", 0)
            os.chown(path, 0, group)
            path.chmod(0o2777)
        return path

    def _mounts(self):
        volumes = {volume["name"]: volume for volume in self.pod["spec"].get("volumes", [])}
        lines = []
        for mount in self.spec.get("volumeMounts", []):
            volume = volumes[mount["name"]]
            size = self.node.tmpfs_sizes.get(mount["mountPath"])
            if "image" in volume:
                lines.append(f"{self.node.agent_image} {mount['mountPath']} bind,ro")
            elif size:
                lines.append(f"tmpfs {mount['mountPath']} mode=2777,size={size}")
            else:
                read_only = ",ro" if mount.get("readOnly") else ""
                lines.append(f"{self.volume_dir(mount['name'])} {mount['mountPath']} bind{read_only}")
        return "\n".join(lines)

    def run_init(self, container):
        """The init container that installs the agent."""
        command = list(container["command"])
        assert command[1] == "install", command
        name = next(mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == command[2])
        subprocess.run([self.node.agent_image / Path(command[0]).name, "install", self.volume_dir(name)], check=True,
                       env={"PATH": IMAGE_PATH})

    def start(self):
        security = self.pod["spec"].get("securityContext", {})
        env = [f"{item['name']}={item['value']}" for item in self.spec.get("env", [])]
        args = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--propagation", "private", "--ipc", "--uts",
                "--net", "--", HERE / "pod-container", self.dir / "root", str(security.get("runAsUser", 0)),
                str(security.get("runAsGroup", 0)), self.spec.get("workingDir", "/"), self._mounts(),
                f"PATH={IMAGE_PATH}", *env, *self.spec["command"]]
        with open(self.log, "ab") as log:
            self.process = self.node.spawner.start(args, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                   start_new_session=True)

    def agent_runs(self):
        """Whether an attach can be tried: PID 1 has become the agent."""
        if self.process is None:
            return False
        if self.inner is None and self.process.poll() is None:
            try:
                children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
                if children and AGENT in os.readlink(f"/proc/{children[0]}/exe"):
                    self.inner = int(children[0])
            except OSError:
                pass
        return self.inner is not None and self.process.poll() is None

    def enter(self, command, **options):
        args = ["nsenter", "--target", str(self.inner), "--pid", "--mount", "--ipc", "--uts", "--net", "--root", "--wd",
                "--", "setpriv", "--no-new-privs", "--reuid", str(self.pod["spec"]["securityContext"]["runAsUser"]),
                "--regid", str(self.pod["spec"]["securityContext"]["runAsGroup"]), "--clear-groups", "--bounding-set=-all",
                "--inh-caps=-all", "env", "-i", f"PATH={IMAGE_PATH}", *command]
        return subprocess.Popen(args, **options)

    def run(self, *command, **options):
        """As `kubectl exec` would, for tests to look around with."""
        with self.enter(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
            out, err = process.communicate(timeout=30)
        return process.returncode, out, err

    def processes(self):
        """Command lines of all processes inside, the agent's own excepted."""
        found = []
        space = os.readlink(f"/proc/{self.inner}/ns/pid") if self.agent_runs() else None
        for entry in os.listdir("/proc") if space else []:
            try:
                if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/pid") == space:
                    line = Path(f"/proc/{entry}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                    if line != [b""] and AGENT.encode() not in line[0]:
                        found.append([part.decode(errors="replace") for part in line])
            except OSError:
                continue
        return found

    def exit_code(self):
        code = self.process.returncode
        if code == 1 and b"unshare: sigprocmask unblock failed" in self.log.read_bytes()[-200:]:
            return 137  # what unshare(1) makes of a child that was killed
        return code if code >= 0 else 128 - code

    def kill(self, grace=0):
        if self.process is None or self.process.poll() is not None:
            return
        if grace and self.agent_runs():
            os.kill(self.inner, signal.SIGTERM)
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                pass
        if self.process.poll() is None:
            self.process.kill()  # unshare; PID 1 follows by its parent-death signal, and the rest with PID 1
        self.process.wait()

    def remove(self):
        self.kill()
        for _ in range(50):  # the last process may still hold its mounts
            shutil.rmtree(self.dir, ignore_errors=True)
            if not self.dir.exists():
                return
            time.sleep(0.02)


def make_agent_image(directory, agent):
    """What the agent's image holds: the real one that nobody can read, and a readable copy."""
    for name, mode in ((AGENT, 0o711), (AGENT + ".0755", 0o755)):
        shutil.copy(agent, directory / name)
        (directory / name).chmod(mode)
    return directory


class Node:
    """Scheduler and kubelet. `api` has set_status(), events and the scripts."""

    def __init__(self, api, directory, agent):
        self.api = api
        self.dir = Path(directory)
        (self.dir / "agent-image").mkdir(parents=True)
        self.agent_image = make_agent_image(self.dir / "agent-image", agent)
        self.spawner = Spawner()
        self.containers = {}  # by the pod's uid
        self.lock = threading.Lock()
        self.tmpfs_sizes = {}  # mount path -> size, for pods started from now on
        self.scripts = {}  # pod name, or None for all -> script(node, pod)
        self.stopped = False

    def container(self, sandbox_id):
        pod = self.api.get("pods", f"sandbox-{sandbox_id}")
        return self.containers.get(pod["metadata"]["uid"]) if pod else None

    # --- what happens to a pod ------------------------------------------------
    def take(self, pod):
        threading.Thread(target=self._take, args=(pod,), daemon=True).start()

    def _take(self, pod):
        script = self.scripts.get(pod["metadata"]["name"]) or self.scripts.get(None) or Node.run_pod
        script(self, pod)

    def run_pod(self, pod):
        self.assign(pod)
        self.start(pod)

    def assign(self, pod):
        def change(item):
            item["spec"]["nodeName"] = "node-1"
            set_condition(item, "PodScheduled", "True")
        self.api.change("pods", pod, change)
        self.waiting(pod, "ContainerCreating")

    def unschedulable(self, pod, message="0/1 nodes are available: 1 Insufficient cpu."):
        self.api.change("pods", pod, lambda item: set_condition(item, "PodScheduled", "False", "Unschedulable", message))

    def waiting(self, pod, reason, message=None, container=None):
        """A container waits: state.waiting."""
        state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        self.set_container(pod, state, container, ready=False)

    def set_container(self, pod, state, container=None, ready=False, container_id=None, restarts=0, last=None):
        names = [item["name"] for item in pod["spec"].get("initContainers", [])]
        kind = "initContainerStatuses" if container in names else "containerStatuses"
        name = container or pod["spec"]["containers"][0]["name"]
        status = {"name": name, "state": state, "ready": ready, "restartCount": restarts, "lastState": last or {},
                  "image": pod["spec"]["containers"][0].get("image", ""), "imageID": ""}
        if container_id:
            status["containerID"] = container_id

        def change(item):
            others = [one for one in item["status"].get(kind, []) if one["name"] != name]
            item["status"][kind] = others + [status]
            if "running" in state:
                item["status"].update(phase="Running", podIP="10.244.0.2", hostIP="10.0.0.1")
                set_condition(item, "Ready", "True")
        self.api.change("pods", pod, change)

    def start(self, pod):
        container = Container(self, pod)
        with self.lock:
            if self.stopped or not self.api.exists("pods", pod):
                shutil.rmtree(container.dir, ignore_errors=True)
                return None
            self.containers[pod["metadata"]["uid"]] = container
        for init in pod["spec"].get("initContainers", []):
            container.run_init(init)
        if container.spec["command"][1:] == ["--version"]:  # the probe of image volumes
            self.ended(pod, 0, "Completed", container.id)
            return container
        container.start()
        while not container.agent_runs() and container.process.poll() is None:
            time.sleep(0.002)
        self.set_container(pod, {"running": {"startedAt": now()}}, ready=True, container_id=container.id)
        threading.Thread(target=self._reap, args=(pod, container), daemon=True).start()
        return container

    def _reap(self, pod, container):
        container.process.wait()
        code = container.exit_code()
        self.ended(pod, code, "Completed" if code == 0 else "Error", container.id)

    def ended(self, pod, exit_code, reason, container_id=None, message=None):
        terminated = {"exitCode": exit_code, "reason": reason, "finishedAt": now(), **({"message": message} if message else {})}
        self.set_container(pod, {"terminated": terminated}, container_id=container_id)
        self.phase(pod, "Succeeded" if exit_code == 0 else "Failed")

    def phase(self, pod, phase, reason=None, message=None):
        def change(item):
            item["status"]["phase"] = phase
            set_condition(item, "Ready", "False")
            if reason:
                item["status"].update(reason=reason, message=message)
        self.api.change("pods", pod, change)

    # --- ends -----------------------------------------------------------------
    def drop(self, pod, grace=0):
        """The pod has been deleted."""
        with self.lock:
            container = self.containers.pop(pod["metadata"]["uid"], None)
        if container:
            container.kill(grace)
            container.remove()

    def stop(self):
        with self.lock:
            self.stopped = True
            containers = list(self.containers.values())
            self.containers.clear()
        for container in containers:
            container.remove()
        self.spawner.jobs.put(None)


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def set_condition(pod, kind, status, reason=None, message=None):
    conditions = [item for item in pod["status"].get("conditions", []) if item["type"] != kind]
    condition = {"type": kind, "status": status, "lastTransitionTime": now()}
    if reason:
        condition.update(reason=reason, message=message)
    pod["status"]["conditions"] = conditions + [condition]
