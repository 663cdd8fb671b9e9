"""The protocols of the packages `podsandbox` and `dockersandbox`, kept by podsandboxd over HTTP. One file, nothing but Python's
own library; change one import:

    from podsandbox_http import Sandbox          # was: from podsandbox import Sandbox
    from podsandbox_http import DockerSandbox    # was: from dockersandbox import DockerSandbox

PODSANDBOX_URL says where the API is (default: http://127.0.0.1:8080), PODSANDBOX_API_KEY is its key. What differs from the
packages is in the README of the project, under "Coming from the Python packages".
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote
from uuid import uuid4

__all__ = [
    "Api", "DockerSandbox", "ExecResult", "PreviewHandle", "Sandbox", "SandboxConfig", "SandboxError", "SandboxExecError",
    "SandboxProvisionError", "SandboxServiceError", "SandboxTimeoutError", "scrub_secrets",
]

PREVIEW_LOG = ".podsandbox-preview.log"
CREATE_SLACK = 30.0  # seconds that a create may take beyond its ready timeout


# --- what the packages have ------------------------------------------------------------------
@dataclass(frozen=True)
class ExecResult:
    """How a command ended. One that a signal ended has 128 and its number, as in a shell."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class PreviewHandle:
    """Where a browser finds what listens in a sandbox. The names are empty where the server itself serves previews."""

    url: str
    port: int
    service: str
    ingress: str


class SandboxError(Exception):
    """Of every kind below. `code` is the API's finer one, or None."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class SandboxProvisionError(SandboxError):
    """There is no sandbox, or it did not become ready."""


class SandboxExecError(SandboxError):
    """A command or a file operation could not be carried out."""


class SandboxTimeoutError(SandboxError):
    """A command ran longer than it may."""


class SandboxServiceError(SandboxError):
    """A preview was not published, or what it serves did not start."""


@dataclass(frozen=True)
class SandboxConfig:
    """What a caller may choose. Namespace, preview domain, ingress class and the like are the operator's: settings of the server."""

    workdir: str | None = None
    runtime_class: str | None = None
    image_pull_policy: str | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    read_only_root_fs: bool | None = None
    cpu_limit: str | None = None
    memory_limit: str | None = None
    cpu_request: str | None = None
    memory_request: str | None = None
    ready_timeout: float = 120.0
    ttl: float | None = None
    writable_mounts: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None

    def spec(self) -> dict:
        """As the body of a create."""
        resources = {"cpu": self.cpu_limit, "memory": self.memory_limit, "cpu_request": self.cpu_request, "memory_request": self.memory_request}
        spec = {
            "workdir": self.workdir, "runtime_class": self.runtime_class, "image_pull_policy": self.image_pull_policy, "ttl": self.ttl,
            "run_as_user": self.run_as_user, "run_as_group": self.run_as_group, "read_only_root": self.read_only_root_fs,
            "network": self.network, "ready_timeout": self.ready_timeout, "writable_mounts": sorted(self.writable_mounts.values()) or None,
            "resources": {name: value for name, value in resources.items() if value is not None} or None,
        }
        return {name: value for name, value in spec.items() if value is not None}


def scrub_secrets(text: str, secrets: Iterable[str]) -> str:
    """`***` for each of the secrets; the longest first, so that none shows as the rest of another."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


# --- the API ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> dict:
        return json.loads(self.body)


class Api:
    """Where podsandboxd is, and as whom it is called."""

    def __init__(self, url: str | None = None, key: str | None = None) -> None:
        self.url = (url or os.environ.get("PODSANDBOX_URL") or "http://127.0.0.1:8080").rstrip("/")
        self.key = key or os.environ.get("PODSANDBOX_API_KEY")

    def send(self, method: str, path: str, body: bytes | dict | None = None, timeout: float | None = None) -> Answer:
        """Any answer, of whatever status. OSError: there was none."""
        headers = {"Content-Type": "application/octet-stream"}
        if isinstance(body, dict):
            body, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(self.url + path, data=body, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return Answer(answer.status, answer.read())
        except urllib.error.HTTPError as failure:
            return Answer(failure.code, failure.read())

    async def call(self, *args, **options) -> Answer:
        return await asyncio.to_thread(self.send, *args, **options)


KINDS = {"provision_error": SandboxProvisionError, "service_error": SandboxServiceError, "timeout": SandboxTimeoutError}


def problem_of(answer: Answer) -> tuple[str, str, str | None]:
    """Category, what it says, and code of an answer that is no success."""
    try:
        problem = answer.json()
        said = f"{problem['title']}: {problem['detail']}"
        if problem.get("remediation"):
            said += f" ({problem['remediation']})"
        return problem["category"], said, problem["code"]
    except (ValueError, KeyError, TypeError):
        return "", f"HTTP status {answer.status}", None


def text_of(result: dict, stream: str) -> str:
    if result[f"{stream}_encoding"] == "base64":
        return base64.b64decode(result[stream]).decode(errors="replace")
    return result[stream]


# --- the sandbox -----------------------------------------------------------------------------
class Sandbox:
    """The protocol of `podsandbox`, and the names that `dockersandbox` has for the same."""

    def __init__(self, *, sandbox_id: str | None = None, config: SandboxConfig | None = None, backend: Api | None = None,
                 secrets: list[str] | None = None) -> None:
        self._id = sandbox_id or f"run-{uuid4().hex[:12]}"
        self._config = config or SandboxConfig()
        self._api = backend or Api()
        self._secrets = [secret for secret in secrets or [] if secret]
        self._told = 0  # of the secrets, those that the server knows
        self._started = False

    @property
    def sandbox_id(self) -> str:
        return self._id

    @property
    def container_id(self) -> str | None:
        """What a reaper is told; None while nothing runs."""
        return self._id if self._started else None

    def add_secret(self, value: str) -> None:
        if value:
            self._secrets.append(value)

    def _scrub(self, text: str) -> str:
        return scrub_secrets(text, self._secrets)

    def _url(self, rest: str = "", sandbox_id: str | None = None) -> str:
        return f"/v1/sandboxes/{quote(sandbox_id or self._id, safe='')}{rest}"

    async def _tell_secrets(self, failure: type[SandboxError]) -> None:
        """Before anything else runs, so that no record of the server has one."""
        fresh = self._secrets[self._told:]
        if fresh and self._started:
            await self._send(failure, "POST", self._url("/secrets"), {"values": fresh})
            self._told += len(fresh)

    async def _send(self, failure: type[SandboxError], *args, **options) -> Answer:
        """An answer that is a success. FAILURE is what it is where the API names no other kind."""
        try:
            answer = await self._api.call(*args, **options)
        except OSError as cause:
            raise failure(self._scrub(f"podsandboxd at {self._api.url} does not answer: {cause}")) from cause
        if answer.status >= 300:
            category, said, code = problem_of(answer)
            raise KINDS.get(category, failure)(self._scrub(said), code)
        return answer

    async def _call(self, method: str, rest: str, body: bytes | dict | None = None, failure: type[SandboxError] = SandboxExecError,
                    **options) -> Answer:
        await self._tell_secrets(failure)
        return await self._send(failure, method, self._url(rest), body, **options)

    # --- life ---
    async def start(self, *, image: str, env: Mapping[str, str] | None = None) -> None:
        spec = {"id": self._id, "image": image, "env": dict(env or {}), "secrets": list(self._secrets), **self._config.spec()}
        try:
            await self._send(SandboxProvisionError, "POST", "/v1/sandboxes", spec, timeout=self._config.ready_timeout + CREATE_SLACK)
        except SandboxError as failure:
            raise SandboxProvisionError(str(failure), failure.code) from failure
        self._started, self._told = True, len(spec["secrets"])

    async def stop(self) -> None:
        """Never fails; what cannot be reached ends at its deadline."""
        if self._started:
            self._started = False
            await self.remove(self._id)

    async def remove(self, sandbox_id: str) -> None:
        if sandbox_id:
            try:
                await self._api.call("DELETE", self._url(sandbox_id=sandbox_id))
            except OSError:
                pass

    async def exists(self, sandbox_id: str) -> bool:
        if not sandbox_id:
            return False
        try:
            return (await self._api.call("HEAD", self._url(sandbox_id=sandbox_id))).status == 200
        except OSError:
            return False

    remove_container = remove
    container_exists = exists

    # --- commands ---
    async def exec(self, cmd: list[str], *, timeout: float | None = None, workdir: str | None = None,
                   env: Mapping[str, str] | None = None) -> ExecResult:
        body = {"cmd": list(cmd), "env": dict(env or {})}
        if timeout is not None:
            body["timeout"] = timeout
        if workdir is not None:
            body["workdir"] = workdir
        result = (await self._call("POST", "/execs", body)).json()
        error = result["error"] or {}
        if result["timed_out"]:
            raise SandboxTimeoutError(f"the command ran longer than {result['timeout']} s", error.get("code"))
        code = result["exit_code"]
        if code is None and result["signal"] is None:
            raise SandboxExecError(self._scrub(error.get("message") or error.get("code") or "the command's end is not known"), error.get("code"))
        if code is None:
            code = 128 + signal.Signals[f"SIG{result['signal']}"].value
        return ExecResult(code, await self._output(result, "stdout"), await self._output(result, "stderr"))

    async def _output(self, result: dict, stream: str) -> str:
        """The whole of it, also where an answer does not carry as much."""
        if not result["truncated"]:
            return self._scrub(text_of(result, stream))
        raw = await self._call("GET", f"/execs/{result['id']}/output?stream={stream}")
        return self._scrub(raw.body.decode(errors="replace"))

    # --- files ---
    @staticmethod
    def _files(path: str) -> str:
        return f"/files?path={quote(path, safe='')}"

    async def write_file(self, path: str, content: str) -> None:
        await self._call("PUT", self._files(path), content.encode())

    async def read_file(self, path: str) -> str:
        return self._scrub((await self._call("GET", self._files(path))).body.decode(errors="replace"))

    async def put_file(self, path: str, content: str, *, mode: int = 0o644) -> None:
        if not path.startswith("/"):
            raise SandboxExecError(self._scrub(f"put_file takes an absolute path, not {path!r}"))
        await self._call("PUT", f"{self._files(path)}&mode={mode:04o}", content.encode())

    async def list_files(self, path: str = ".") -> list[str]:
        found, cursor = [], ""
        while cursor is not None:
            page = (await self._call("GET", f"/tree?format=paths&path={quote(path, safe='')}{cursor and f'&cursor={quote(cursor)}'}")).json()
            found, cursor = found + page["items"], page["next"]
        return sorted(self._scrub(name) for name in found)

    # --- previews ---
    async def start_service(self, command: list[str], *, port: int, subdomain: str | None = None,
                            env: Mapping[str, str] | None = None) -> PreviewHandle:
        """The output goes to a file of the workdir, where the package has it."""
        if not self._started:
            raise SandboxServiceError("start_service before start()")
        logged = ["sh", "-c", f'exec "$@" >{PREVIEW_LOG} 2>&1', "sh", *command]
        body = {"command": logged, "port": port, "env": dict(env or {}), **({"subdomain": subdomain} if subdomain else {})}
        preview = (await self._call("POST", "/previews", body, SandboxServiceError)).json()
        return PreviewHandle(preview["url"].rstrip("/"), port, preview.get("service") or "", preview.get("ingress") or "")


class DockerSandbox(Sandbox):
    """With the constructor of `dockersandbox`, whose listings are relative to the path they are of."""

    def __init__(self, *, client: Api | None = None, workdir: str | None = None, secrets: list[str] | None = None) -> None:
        super().__init__(config=SandboxConfig(workdir=workdir), backend=client, secrets=secrets)

    async def list_files(self, path: str = ".") -> list[str]:
        root = path.rstrip("/").removeprefix("./")
        prefix = f"{root}/" if root not in ("", ".") else ""
        return sorted(name.removeprefix(prefix) for name in await super().list_files(path))
