"""A build of a project as a CI does it: the sources go into a fresh sandbox, then the steps run, each a line for the shell, up to the
first that fails. Its exit status is 0 when all went well.

    python examples/python/ci_build.py my-project 'make' 'make test'
    python examples/python/ci_build.py --image localhost/sandbox:1 my-project 'npm ci' 'npm test'
"""

import argparse
import asyncio
import io
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

from podsandbox_http import Api, Sandbox, SandboxConfig, SandboxTimeoutError

SKIPPED = {".git", ".venv", "node_modules", "__pycache__"}  # what the steps make by themselves
TAIL = 2000  # characters that are shown of what a step wrote


@dataclass(frozen=True)
class Step:
    line: str
    exit_code: int | None  # None: it took too long
    seconds: float
    tail: str

    def report(self) -> str:
        how = "took too long" if self.exit_code is None else f"exit code {self.exit_code}"
        return f"{'ok' if self.exit_code == 0 else 'FAILED'}: {self.line} ({how}, {self.seconds:.1f} s)\n{self.tail}".rstrip()


def packed(project: Path) -> bytes:
    """The project as a tar.gz."""
    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if SKIPPED & set(Path(member.name).parts) else member

    packed_to = io.BytesIO()
    with tarfile.open(fileobj=packed_to, mode="w:gz") as archive:
        archive.add(project, arcname=".", filter=wanted)
    return packed_to.getvalue()


async def put_sources(api: Api, box: Sandbox, project: Path) -> None:
    answer = await api.call("PUT", f"/v1/sandboxes/{box.sandbox_id}/archive?path=.", packed(project))
    if answer.status >= 300:
        raise SystemExit(f"ci_build: the sources did not get in: {answer.body.decode()}")


async def run_step(box: Sandbox, line: str, timeout: float) -> Step:
    began = time.monotonic()
    try:
        result = await box.exec(["sh", "-c", f"exec 2>&1; {line}"], timeout=timeout)
        exit_code, output = result.exit_code, result.stdout
    except SandboxTimeoutError as failure:
        exit_code, output = None, f"{failure}\n"
    return Step(line, exit_code, time.monotonic() - began, output[-TAIL:])


async def build(project: Path, lines: list[str], image: str, network: str | None, timeout: float) -> bool:
    api = Api()
    box = Sandbox(backend=api, config=SandboxConfig(network=network))
    try:
        await box.start(image=image, env={"CI": "true"})
        await put_sources(api, box, project)
        for line in lines:
            step = await run_step(box, line, timeout)
            print(step.report(), flush=True)
            if step.exit_code != 0:
                return False
        return True
    finally:
        await box.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description="Build a project in a fresh sandbox.")
    parser.add_argument("project", type=Path, help="its directory")
    parser.add_argument("steps", nargs="+", metavar="step", help="a line for the shell")
    parser.add_argument("--image", default="host", help="default: host, the local driver's own")
    parser.add_argument("--network", help="such as host, where the server allows it")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that a step may take")
    given = parser.parse_args()
    return 0 if asyncio.run(build(given.project, given.steps, given.image, given.network, given.timeout)) else 1


if __name__ == "__main__":
    sys.exit(main())
