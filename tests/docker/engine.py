"""A Docker Engine of the tests' own: dockerd, with the containerd that it starts itself, in namespaces of its own for processes,
mounts and network. Whatever other engine runs on this machine is not touched, and nothing is left when it has ended.

    python tests/docker/engine.py DIRECTORY      starts one with the tests' images, prints its address, and waits for the end of its input
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import requests

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "functional"))

from docker_api import Api  # noqa: E402

IMAGES = Path(os.environ.get("PODSANDBOX_CLUSTER") or "/var/tmp/podsandbox-cluster") / "bin/images"
PROGRAMS = Path(os.environ.get("PODSANDBOX_DOCKER") or "/var/tmp/podsandbox-docker")  # of tests/docker/programs
CGROUPS = Path("/sys/fs/cgroup")
START_TIMEOUT = 60


def path_of_programs():
    return os.pathsep.join([str(PROGRAMS / "usr/sbin"), str(PROGRAMS / "usr/bin"), os.environ["PATH"]])


def can_run():
    return os.geteuid() == 0 and shutil.which("dockerd", path=path_of_programs()) is not None


# --- images ---------------------------------------------------------------------------------------
def docker_archive(path):
    """What `docker load` takes, of an OCI archive with one image."""
    source = tarfile.open(path)

    def read(name):
        return source.extractfile(name).read()

    def blob(digest):
        return read("blobs/" + digest.replace(":", "/"))
    described = json.loads(read("index.json"))["manifests"][0]
    manifest = json.loads(blob(described["digest"]))
    layers = [layer["digest"] for layer in manifest["layers"]]
    name = described["annotations"]["io.containerd.image.name"]
    files = {"config.json": blob(manifest["config"]["digest"]), **{f"{layer[7:]}.tar": blob(layer) for layer in layers}}
    files["manifest.json"] = json.dumps(
        [{"Config": "config.json", "RepoTags": [name], "Layers": [f"{layer[7:]}.tar" for layer in layers]}]).encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


# --- the engine -------------------------------------------------------------------------------------
class Engine:
    """One at a time in a directory."""

    def __init__(self, directory, *options):
        self.directory, self.options = Path(directory), options
        self.socket = self.directory / "docker.sock"
        self.process = None
        self.group = f"podsandbox-docker-{os.getpid()}-{id(self):x}"

    @property
    def url(self):
        return f"unix://{self.socket}"

    @property
    def api(self):
        return Api(self.socket)

    def start(self):
        run = self.directory / "run"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
        self.socket.unlink(missing_ok=True)
        dockerd = ["dockerd", "--host", self.url, "--data-root", self.directory / "data", "--exec-root", run,
                   "--pidfile", run / "dockerd.pid", "--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", f"/{self.group}",
                   "--default-address-pool", "base=10.201.0.0/16,size=24", *self.options]
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                   "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *map(str, dockerd)]
        with open(self.directory / "dockerd.log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env={**os.environ, "PATH": path_of_programs()}, cwd="/")
        end = time.monotonic() + START_TIMEOUT
        while not self.answers():
            assert self.process.poll() is None and time.monotonic() < end, f"dockerd did not start:\n{self.log()[-3000:]}"
            time.sleep(0.05)
        return self

    def answers(self):
        try:
            return self.api.session.get("http://docker/_ping", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def log(self):
        return (self.directory / "dockerd.log").read_text(errors="replace")

    def load(self, *names):
        for name in names:
            self.api.request("POST", "/v1.41/images/load", data=docker_archive(IMAGES / f"{name}.tar"),
                             headers={"Content-Type": "application/x-tar"})
        return self

    def pause(self):
        """It answers nobody any more."""
        self.signal(signal.SIGSTOP)

    def resume(self):
        self.signal(signal.SIGCONT)

    def signal(self, number):
        """To dockerd itself, the first process in its namespace."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in children:
            os.kill(int(pid), number)

    def stop(self):
        """With all that it runs: they share a namespace of processes."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self.process = None
        self.remove_groups()

    def remove_groups(self):
        """The kernel needs a moment for the processes in them."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            tops = [top for top in (*CGROUPS.glob(f"*/{self.group}"), CGROUPS / self.group) if top.exists()]
            if not tops:
                return
            for top in tops:
                for folder, _, _ in os.walk(top, topdown=False):
                    try:
                        os.rmdir(folder)
                    except OSError:
                        continue
            time.sleep(0.02)
        raise AssertionError(f"the control groups of {self.group} are still there")

    def remove(self):
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


class TemporaryEngine(Engine):
    """With the images that the tests use."""

    def __init__(self, *options):
        super().__init__(tempfile.mkdtemp(prefix="podsandbox-docker-"), *options)

    def __enter__(self):
        try:
            return self.start().load("busybox", "distroless", "python")
        except BaseException:
            self.remove()
            raise

    def __exit__(self, *_):
        self.remove()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    engine = Engine(Path(sys.argv[1]).resolve())
    engine.directory.mkdir(parents=True, exist_ok=True)
    engine.start().load("busybox", "distroless", "python")
    print(engine.url, flush=True)
    try:
        sys.stdin.read()
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
