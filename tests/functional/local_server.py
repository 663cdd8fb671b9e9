"""podsandboxd with the local driver: its sandboxes are processes of this machine."""

import json
import os
import signal
from pathlib import Path
from urllib.parse import urlsplit

import requests

from server import Server, wait_until


def let_others_pass(path):
    """The uids of sandboxes have to reach what lies there."""
    for directory in (path, *path.parents):
        mode = directory.stat().st_mode
        if not mode & 0o001:
            directory.chmod(mode | 0o011)


class LocalServer(Server):
    image = "host"

    def __init__(self, api, directory, options=(), keys=None, env=None):
        super().__init__(api, directory, options, keys, env)
        self.state = self.dir / "state"

    def write_kubeconfig(self, user=None, server=None):
        """There is no cluster."""

    def driver_options(self):
        return ["--driver", "local", "--local-dir", self.dir / "state"]

    def forget(self):
        """The store is lost; what is known of the boxes is not."""
        aside = self.dir.with_name(f"{self.dir.name}-kept")
        self.state.rename(aside)
        super().forget()
        aside.rename(self.state)

    def fetch(self, _, preview, path="/"):
        """(status, body) of a preview: the server itself serves it."""
        answer = requests.get(self.url + path, headers={"Host": urlsplit(preview["url"]).netloc}, timeout=5)
        return answer.status_code, answer.content.decode()

    # --- the boxes --------------------------------------------------------------------------------
    def boxes(self):
        """The names of what is on record."""
        directory = self.state / "boxes"
        return sorted(os.listdir(directory)) if directory.exists() else []

    def record(self, id):
        return json.loads((self.state / "boxes" / id / "record").read_text())

    def agent_pid(self, id):
        return self.record(id)["agent"]["pid"]

    @staticmethod
    def processes(uids):
        """(pid, command line) of every process of this machine that belongs to a box of these uids."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if set(uids) & set(command):
                found.append((int(path.name), " ".join(command)))
        return found

    def cgroups(self):
        """Of boxes that this server has made, or one before it."""
        instance = self.client(next(iter(self.keys), None)).get("/v1/capabilities")["instance"]
        found = []
        for directory, names, _ in os.walk("/sys/fs/cgroup"):  # others come and go meanwhile, which it does not mind
            if os.path.basename(directory) == f"podsandbox-{instance}":
                found += [f"{directory}/{name}" for name in names]
        return sorted(found)

    def wait_gone(self, id):
        wait_until(lambda: id not in self.boxes(), what=f"nothing being left of {id}")

    def end_boxes(self):
        """What a test has left running, after the server's end: boxes outlive it."""
        for id in self.boxes():
            try:
                record = self.record(id)
            except FileNotFoundError:
                continue
            for name in ("agent", "bwrap"):
                try:
                    os.kill(record[name]["pid"], signal.SIGKILL) if record[name]["pid"] else None
                except ProcessLookupError:
                    continue
            for path in filter(None, record["cgroup"].values()):
                wait_until(lambda: remove_group(path), what=f"the end of {path}")


def remove_group(path):
    """A group that is empty goes, and the one above it with its last."""
    for directory in (Path(path), Path(path).parent):
        try:
            directory.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return directory != Path(path)
    return True
