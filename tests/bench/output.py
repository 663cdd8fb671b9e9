"""How fast the output of a command comes to a client: ours as raw bytes and as events, with secrets and without, and what the
same bytes take through a pipe and one process that hands them on."""

import os
import random
import socket
import subprocess
import threading
from pathlib import Path

from table import MIB, p50, speed, timed

FILE, TIMES, TURNS, SECRETS = 16 * MIB, 64, 3, 100
SIZE = FILE * TIMES
COMMAND = ["sh", "-c", f'n=0; while [ $n -lt {TIMES} ]; do cat "$0"; n=$((n + 1)); done']


def sample():
    """Text like a log's: FILE bytes."""
    dice = random.Random(5)
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(2, 10))) for _ in range(5000)]
    lines, size = [], 0
    while size < MIB:
        line = (f"2026-11-30T12:{dice.randint(0, 59):02}:{dice.randint(0, 59):02}Z {' '.join(dice.choices(words, k=9))} "
                f"id={dice.getrandbits(64):016x} took={dice.random():.6f}\n").encode()
        lines.append(line)
        size += len(line)
    return (b"".join(lines)[:MIB - 1] + b"\n") * (FILE // MIB)


def secrets():
    dice = random.Random(6)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-"
    return ["".join(dice.choices(letters, k=dice.randint(16, 48))) for _ in range(SECRETS)]


def curl(url, *options):
    """The bytes of its answer."""
    said = subprocess.run(["curl", "--silent", "--show-error", "--fail", "--noproxy", "*", "--output", "/dev/null", "--write-out",
                           "%{size_download}", *options, url], check=True, capture_output=True, text=True).stdout
    return int(said)


def raw_output(server, client, id):
    """Seconds until a client has all output of a command that has just been started."""
    exec = client.post(f"/v1/sandboxes/{id}/execs", {"cmd": [*COMMAND, "sample"], "detach": True}, 202)["id"]
    url = f"{server.url}/v1/sandboxes/{id}/execs/{exec}/output?stream=stdout&follow=true"

    def read():
        size = curl(url)
        assert size == SIZE, f"{size} of {SIZE} bytes came"
    return timed(read)


def events(server, client, id):
    url = f"{server.url}/v1/sandboxes/{id}/execs"
    body = '{"cmd": ["sh", "-c", "%s", "sample"]}' % COMMAND[2].replace('"', '\\"')

    def read():
        size = curl(url, "--header", "Content-Type: application/json", "--header", "Accept: application/x-ndjson", "--data", body)
        assert size > SIZE, f"{size} bytes came, and no {SIZE}"
    return timed(read)


def pipe_and_hop(file):
    """Seconds in which the same command's output comes to the same client through a pipe and a process behind it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        def hop():
            connection, _ = listening.accept()
            with connection, subprocess.Popen([*COMMAND, file], stdout=subprocess.PIPE) as command:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
                while data := os.read(command.stdout.fileno(), 65536):
                    connection.sendall(data)
        thread = threading.Thread(target=hop)
        thread.start()

        def read():
            size = curl(f"http://127.0.0.1:{listening.getsockname()[1]}/")
            assert size == SIZE, f"{size} of {SIZE} bytes came"
        took = timed(read)
        thread.join()
        return took


def bench_output(table, server, directory):
    """SERVER runs. Each turn is one of each, one after the other."""
    client = server.client()
    data = sample()
    file = Path(directory) / "sample"
    file.write_bytes(data)
    for id, values in (("plain", []), ("secret", secrets())):
        client.create(id, secrets=values)
        client.put(id, "sample", data)
    turns = [{"hop": pipe_and_hop(str(file)), "raw": raw_output(server, client, "plain"), "raw with": raw_output(server, client, "secret"),
              "events": events(server, client, "plain"), "events with": events(server, client, "secret")} for _ in range(TURNS)]
    best = {name: speed(SIZE, min(turn[name] for turn in turns)) for name in turns[0]}
    table.add(f"{SIZE // MIB} MiB of stdout: a pipe and one process behind it", best["hop"])
    for name, what in (("raw", "raw bytes"), ("events", "events")):
        table.add(f"  {what}; with {SECRETS} secrets", f"{best[name]}; {best[name + ' with']}")
        table.at_most("    time / that of the pipe", p50([turn[name] / turn["hop"] for turn in turns]), 1.5, "{:.2f}".format)
        table.at_most("    time with secrets / without", p50([turn[name + " with"] / turn[name] for turn in turns]), 1.25, "{:.2f}".format)
