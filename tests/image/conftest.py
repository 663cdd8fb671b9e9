"""The images, built from their Dockerfiles with buildah. No registry is asked: the base image is made of Debian's packages,
under the name that the Dockerfiles use."""

import json
import os
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASE = "docker.io/library/debian:12"


class Images:
    """A store of images of its own."""

    def __init__(self, directory):
        self.where = ["--root", directory / "root", "--runroot", directory / "run", "--storage-driver", "vfs"]
        self.directory = directory

    def buildah(self, command, *args, timeout=1500):
        done = subprocess.run(["buildah", *map(str, self.where), command, *map(str, args)], capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, f"buildah {command} {args}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout.strip()

    def make_base(self):
        debian = self.directory / "debian"
        subprocess.run([ROOT / "tests/fresh/debian", "make", debian], check=True)
        container = self.buildah("from", "scratch")
        self.buildah("copy", "-q", container, debian, "/")
        self.buildah("commit", "-q", "--rm", container, BASE)
        subprocess.run(["rm", "-rf", "--one-file-system", debian], check=True)

    def build(self, name, context):
        self.buildah("bud", "--isolation", "chroot", "--network", "host", "--pull-never", "--layers=false", "-t", name, context)

    @contextmanager
    def mounted(self, name):
        """The image's root file system."""
        container = self.buildah("from", "--pull-never", name)
        try:
            yield Path(self.buildah("mount", container))
        finally:
            self.buildah("rm", container)

    def config(self, name):
        return json.loads(self.buildah("inspect", "--type", "image", name))["OCIv1"]["config"]


@pytest.fixture(scope="session")
def images():
    with tempfile.TemporaryDirectory(prefix="podsandbox-images-", dir=os.environ.get("TMPDIR", "/var/tmp")) as directory:
        images = Images(Path(directory))
        images.make_base()
        yield images
