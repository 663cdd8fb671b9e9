"""A coding agent: Claude builds what you ask for in a sandbox, runs it, looks at what came out, and ends with a live preview.
Nothing that it writes or runs touches your machine, and your key for the model never enters the sandbox.

    pip install anthropic
    ANTHROPIC_API_KEY=… python examples/python/coding_agent.py 'Build a snake game as a single page and serve it.'
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from anthropic import AnthropicError, AsyncAnthropic
from anthropic.types import Message, ToolUseBlock
from podsandbox_http import PREVIEW_LOG, PreviewHandle, Sandbox, SandboxConfig, SandboxError, SandboxServiceError
from preview import until_enter

TASK = "Build a pomodoro timer as a single page, index.html, without anything from elsewhere, and serve it on port 8000."
SYSTEM = """You are a coding agent. You work in a sandbox of your own, a fresh one, by the tools alone; paths are relative to its working directory.
Do the task, run what you wrote to see that it works, then call finish. Where the result is something to look at in a browser,
give finish the command that serves it and its port, and it will be shown to the user."""
MAX_TOKENS = 16000  # of one answer of the model
READ_LIMIT, STDOUT_TAIL, STDERR_TAIL = 60_000, 4_000, 2_000  # characters that the model is shown


def tool(name: str, description: str, required: tuple[str, ...] = (), **properties: dict) -> dict:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"name": name, "description": description, "input_schema": schema}


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
TOOLS = [
    tool("list_files", "All files below a directory (default: the working directory), except those of .git.", path=TEXT),
    tool("read_file", "What a file holds.", ("path",), path=TEXT),
    tool("write_file", "Makes a file, or replaces it whole. Directories are made as needed.", ("path", "content"), path=TEXT, content=TEXT),
    tool("edit_file", "Replaces a text in a file. It must be there exactly once.", ("path", "old", "new"), path=TEXT, old=TEXT, new=TEXT),
    tool("run_command", "Runs a line of shell and waits for its end: its exit code and the end of its output. Not for servers.",
         ("command",), command=TEXT),
    tool("finish", "Ends the work, which is done. With command and port, a line of shell that serves the result is started for the user to look at.",
         ("summary",), summary=TEXT, command=TEXT, port=NUMBER),
]
TYPES = {"string": str, "integer": int}


class ToolError(Exception):
    """What the model is told instead of a result."""


def check_input(name: str, given: dict) -> None:
    """Against the tool's schema: a model may get it wrong."""
    schema = next((tool["input_schema"] for tool in TOOLS if tool["name"] == name), None)
    if schema is None:
        raise ToolError(f"there is no tool {name}")
    for missing in set(schema["required"]) - given.keys():
        raise ToolError(f"{name} needs {missing}")
    for field, value in given.items():
        if field not in schema["properties"]:
            raise ToolError(f"{name} has no {field}")
        if not isinstance(value, TYPES[schema["properties"][field]["type"]]):
            raise ToolError(f"{field} is no {schema['properties'][field]['type']}")


def tail(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"[{len(text) - limit} characters before this are not shown]\n{text[-limit:]}"


def head(text: str, limit: int = READ_LIMIT) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n[{len(text) - limit} characters after this are not shown]"


class Agent:
    """One task in one sandbox."""

    def __init__(self, box: Sandbox, client: AsyncAnthropic, *, model: str, max_turns: int, command_timeout: float) -> None:
        self.box, self.client, self.model = box, client, model
        self.max_turns, self.command_timeout = max_turns, command_timeout
        self.summary: str | None = None  # when it has finished
        self.preview: PreviewHandle | None = None

    # --- the tools ---
    async def list_files(self, path: str = ".") -> str:
        return head("\n".join(await self.box.list_files(path))) or "(none)"

    async def read_file(self, path: str) -> str:
        return head(await self.box.read_file(path)) or "(empty)"

    async def write_file(self, path: str, content: str) -> str:
        await self.box.write_file(path, content)
        return f"wrote {path}"

    async def edit_file(self, path: str, old: str, new: str) -> str:
        content = await self.box.read_file(path)
        count = content.count(old) if old else 0
        if count != 1:
            raise ToolError(f"the text to replace is in {path} {count} times, not once")
        await self.box.write_file(path, content.replace(old, new))
        return f"edited {path}"

    async def run_command(self, command: str) -> str:
        result = await self.box.exec(["sh", "-c", command], timeout=self.command_timeout)
        return f"exit code {result.exit_code}\nstdout:\n{tail(result.stdout, STDOUT_TAIL)}\nstderr:\n{tail(result.stderr, STDERR_TAIL)}"

    async def finish(self, summary: str, command: str | None = None, port: int | None = None) -> str:
        if (command is None) != (port is None):
            raise ToolError("command and port go together")
        if command is not None:
            try:
                self.preview = await self.box.start_service(["sh", "-c", command], port=port)
            except SandboxServiceError as failure:
                raise ToolError(f"{failure}\nIts output: {await self.preview_output()}") from failure
        self.summary = summary
        return "done"

    async def preview_output(self) -> str:
        try:
            return tail(await self.box.read_file(PREVIEW_LOG), STDERR_TAIL)
        except SandboxError:
            return "(none: it was not started)"

    async def use(self, block: ToolUseBlock) -> dict:
        """A tool's result. A failure is one, too: the model reads why, and goes on."""
        shown = block.input.get("path") or block.input.get("command") or ""
        print(f"-> {block.name} {shown}", flush=True)
        result = {"type": "tool_result", "tool_use_id": block.id}
        try:
            check_input(block.name, block.input)
            call: Callable[..., Awaitable[str]] = getattr(self, block.name)
            return {**result, "content": await call(**block.input)}
        except (ToolError, SandboxError) as failure:
            return {**result, "content": str(failure), "is_error": True}

    # --- the turns ---
    async def ask(self, messages: list[dict]) -> Message:
        answer = await self.client.messages.create(model=self.model, max_tokens=MAX_TOKENS, system=SYSTEM, tools=TOOLS, messages=messages)
        messages.append({"role": "assistant", "content": answer.content})
        for block in answer.content:
            if block.type == "text":
                print(block.text, flush=True)
        return answer

    async def work(self, task: str) -> None:
        """Until it finishes, stops without that, or has had its turns."""
        messages: list[dict] = [{"role": "user", "content": task}]
        for _ in range(self.max_turns):
            answer = await self.ask(messages)
            uses = [block for block in answer.content if block.type == "tool_use"]
            if not uses:
                return
            if answer.stop_reason == "max_tokens":  # the last one is cut off
                cut = {"type": "tool_result", "is_error": True, "content": "your answer was too long and is cut off: write less at once"}
                results = [{**cut, "tool_use_id": block.id} for block in uses]
            else:
                results = [await self.use(block) for block in uses]
            if self.summary is not None:
                return
            messages.append({"role": "user", "content": results})


async def build(given: argparse.Namespace) -> int:
    box = Sandbox(config=SandboxConfig(network=given.network))
    try:
        async with AsyncAnthropic(api_key=given.key or "none", base_url=given.base_url) as client:
            await box.start(image=given.image)
            agent = Agent(box, client, model=given.model, max_turns=given.max_turns, command_timeout=given.command_timeout)
            await agent.work(given.task)
        if agent.summary is None:
            print("It did not finish; what it has:", *await box.list_files(), sep="\n")
            return 1
        print("finished:", agent.summary)
        if agent.preview:
            print("open:", agent.preview.url)
            await until_enter()
        return 0
    except (AnthropicError, SandboxError) as failure:
        print(f"coding_agent: {failure}", file=sys.stderr)
        return 1
    finally:
        await box.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description="Let Claude build something in a sandbox. ANTHROPIC_API_KEY holds the key for the model.")
    parser.add_argument("task", nargs="?", default=TASK)
    parser.add_argument("--model", default=os.environ.get("ANTHROPIC_MODEL", "claude-opus-4-8"))
    parser.add_argument("--base-url", help="of another server that speaks the model's API; a key is not needed then")
    parser.add_argument("--image", default="host", help="default: host, the local driver's own")
    parser.add_argument("--network", help="such as host, where the server allows it")
    parser.add_argument("--max-turns", type=int, default=40, help="answers of the model; default: 40")
    parser.add_argument("--command-timeout", type=float, default=120, help="seconds that a command may take; default: 120")
    given = parser.parse_args()
    given.key = os.environ.get("ANTHROPIC_API_KEY")
    if not given.key and not given.base_url:
        parser.error("ANTHROPIC_API_KEY has no key for the model, and there is no --base-url")
    return asyncio.run(build(given))


if __name__ == "__main__":
    sys.exit(main())
