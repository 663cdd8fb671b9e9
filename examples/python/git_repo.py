"""Git in a sandbox: clone, change, look at the difference, publish a branch. The token goes in as a file, is in no command line
and no URL, and is masked wherever it would show.

    GIT_TOKEN=… python examples/python/git_repo.py --image localhost/sandbox:1 https://git.example.com/team/project.git

`GitRepo` needs nothing but the packages' protocol; use it in your own code.
"""

import argparse
import asyncio
import os
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from podsandbox_http import ExecResult, Sandbox, SandboxConfig

AUTHOR = {"GIT_AUTHOR_NAME": "Sandbox", "GIT_AUTHOR_EMAIL": "sandbox@example.com",
          "GIT_COMMITTER_NAME": "Sandbox", "GIT_COMMITTER_EMAIL": "sandbox@example.com"}


@dataclass(frozen=True)
class GitAuth:
    username: str  # many hosts take any
    token: str


class GitError(Exception):
    """What git said when it failed."""


class GitRepo:
    """A clone in a sandbox, in DIRECTORY below its workdir."""

    def __init__(self, box: Sandbox, directory: str = "repo") -> None:
        self._box = box
        self._directory = directory
        self._base = ""  # the commit that was cloned

    async def _run(self, *cmd: str) -> ExecResult:
        result = await self._box.exec(list(cmd), env={"GIT_TERMINAL_PROMPT": "0", **AUTHOR}, timeout=300)
        if result.exit_code != 0:
            raise GitError(f"{' '.join(cmd)}: {result.stderr.strip() or result.stdout.strip()}")
        return result

    async def _git(self, *args: str) -> str:
        return (await self._run("git", "-C", self._directory, *args)).stdout

    async def _keep_credentials(self, url: str, auth: GitAuth) -> None:
        """In the store that git itself looks at."""
        self._box.add_secret(auth.token)
        parts = urlsplit(url)
        home = (await self._run("sh", "-c", 'printf %s "$HOME"')).stdout
        line = f"{parts.scheme}://{quote(auth.username, safe='')}:{quote(auth.token, safe='')}@{parts.netloc}\n"
        await self._box.put_file(f"{home}/.git-credentials", line, mode=0o600)
        await self._run("git", "config", "--global", "credential.helper", "store")

    async def clone(self, url: str, auth: GitAuth | None = None, *, ref: str = "main") -> None:
        if auth:
            await self._keep_credentials(url, auth)
        await self._run("git", "clone", "--quiet", "--depth", "1", "--branch", ref, "--", url, self._directory)
        self._base = (await self._git("rev-parse", "HEAD")).strip()

    async def diff(self) -> str:
        """All that differs from what was cloned, new files too."""
        await self._git("add", "--intent-to-add", "--all")
        return await self._git("diff", self._base)

    async def publish(self, *, branch: str, message: str) -> None:
        await self._git("checkout", "--quiet", "-B", branch)
        await self._git("add", "--all")
        await self._git("commit", "--quiet", f"--message={message}")
        await self._git("push", "--quiet", "origin", f"HEAD:refs/heads/{branch}")


async def add_note(given: argparse.Namespace) -> None:
    """A whole round: a new file, on a branch of its own."""
    box = Sandbox(config=SandboxConfig(network=given.network))
    token = os.environ.get("GIT_TOKEN")
    try:
        await box.start(image=given.image)
        repo = GitRepo(box)
        await repo.clone(given.url, GitAuth(given.user, token) if token else None, ref=given.ref)
        await box.write_file("repo/NOTES.md", "Written in a sandbox.\n")
        print(await repo.diff(), end="")
        await repo.publish(branch=given.branch, message="Add notes")
        print("published:", given.branch)
    except GitError as failure:
        raise SystemExit(f"git_repo: {failure}") from None
    finally:
        await box.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="Add a file to a repository, on a new branch. GIT_TOKEN may hold a token.")
    parser.add_argument("url")
    parser.add_argument("--ref", default="main", help="the branch that is cloned; default: main")
    parser.add_argument("--branch", default="sandbox/notes", help="the branch that is made; default: sandbox/notes")
    parser.add_argument("--user", default="oauth2", help="who the token is for; default: oauth2")
    parser.add_argument("--image", default="host", help="default: host, the local driver's own")
    parser.add_argument("--network", help="such as host, where the server allows it")
    asyncio.run(add_note(parser.parse_args()))


if __name__ == "__main__":
    main()
