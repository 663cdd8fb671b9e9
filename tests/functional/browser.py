"""A headless Chromium with one page, driven over the DevTools protocol."""

import base64
import json
import re
import shutil
import subprocess

import requests
from websockets.sync.client import connect

from server import wait_until

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--no-proxy-server", "--remote-debugging-port=0")


class Browser:
    def __init__(self, directory, size=(800, 400)):
        assert shutil.which("chromium"), "chromium is missing (apt-get install chromium)"
        self.log = open(directory / "chromium.log", "w+")
        self.process = subprocess.Popen([shutil.which("chromium"), *FLAGS, f"--window-size={size[0]},{size[1]}", f"--user-data-dir={directory / 'profile'}", "about:blank"],
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.port = wait_until(lambda: re.search(r"DevTools listening on ws://127.0.0.1:(\d+)/", self.said()), 60, "the browser")[1]
        page = next(target for target in self.targets() if target["type"] == "page")
        self.socket = connect(page["webSocketDebuggerUrl"], max_size=None)
        self.number = 0
        self.events = []  # what the page told by itself, once its domain is enabled

    def targets(self):
        return requests.get(f"http://127.0.0.1:{self.port}/json", timeout=10).json()

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while (answer := json.loads(self.socket.recv(60))).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def value(self, script):
        return self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)["result"].get("value")

    def text(self, id):
        return self.value(f"document.getElementById('{id}')?.textContent")

    def wait(self, script, want=True):
        wait_until(lambda: self.value(script) == want, 30, lambda: f"{script} being {want!r}, not {self.value(script)!r},")

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait()
        self.log.close()
