"""A web page that is made and served in a sandbox, open in your browser.

    python examples/python/preview.py [IMAGE]           default: host, the local driver's own
"""

import asyncio
import os
import sys
import threading

from podsandbox_http import Sandbox

PAGE = "<!doctype html><title>Preview</title><h1>Hello from a sandbox</h1>\n"


async def until_enter() -> None:
    """Or Ctrl-C, which a thread that waits for the terminal does not hold up."""
    loop, pressed = asyncio.get_running_loop(), asyncio.Event()

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1000)
        loop.call_soon_threadsafe(pressed.set)

    print("Enter ends it.", flush=True)
    threading.Thread(target=wait, daemon=True).start()
    await pressed.wait()


async def main() -> None:
    box = Sandbox()
    try:
        await box.start(image=sys.argv[1] if len(sys.argv) > 1 else "host")
        await box.write_file("site/index.html", PAGE)
        preview = await box.start_service(["python3", "-u", "-m", "http.server", "--directory", "site", "8000"], port=8000)
        print("open:", preview.url, flush=True)
        await until_enter()
        print("its log:", await box.read_file(".podsandbox-preview.log"), sep="\n", end="")
    finally:
        await box.stop()


if __name__ == "__main__":
    asyncio.run(main())
