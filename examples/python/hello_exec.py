"""The smallest use: commands and files in a sandbox.

    python examples/python/hello_exec.py [IMAGE]        default: the server's own
"""

import asyncio
import sys

from podsandbox_http import Api, Sandbox


async def main() -> None:
    box = Sandbox(sandbox_id="hello")
    try:
        await box.start(image=sys.argv[1] if len(sys.argv) > 1 else "host")
        await box.write_file("data.txt", "one\ntwo\nthree\n")
        print(await box.exec(["wc", "-l", "data.txt"]))
        print(await box.exec(["python3", "-c", "print(6*7)"]))
        print(await box.read_file("data.txt"), end="")
        print("files:", await box.list_files("."))
    finally:
        await box.stop()


if __name__ == "__main__":
    print("at", Api().url)
    asyncio.run(main())
