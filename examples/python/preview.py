"""A web page that is made and served in a sandbox, open in your browser.

    python examples/python/preview.py [IMAGE]           default: host, the local driver's own
"""

import asyncio
import sys

from podsandbox_http import Sandbox

PAGE = "<!doctype html><title>Preview</title><h1>Hello from a sandbox</h1>\n"


async def main() -> None:
    box = Sandbox()
    try:
        await box.start(image=sys.argv[1] if len(sys.argv) > 1 else "host")
        await box.write_file("site/index.html", PAGE)
        preview = await box.start_service(["python3", "-u", "-m", "http.server", "--directory", "site", "8000"], port=8000)
        print("open:", preview.url, flush=True)
        print("Enter ends it.", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print("its log:", await box.read_file(".podsandbox-preview.log"), sep="\n", end="")
    finally:
        await box.stop()


if __name__ == "__main__":
    asyncio.run(main())
