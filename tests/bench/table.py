"""How the parts of the bench measure, and the table that they print."""

import statistics
import time
from pathlib import Path

KIB, MIB = 1024, 1 << 20


def timed(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def samples(count, call):
    call()  # the first one may connect
    return [timed(call) for _ in range(count)]


def p50(values):
    return statistics.median(values)


def p99(values):
    """By nearest rank: of fewer than 100 values it is the slowest."""
    return sorted(values)[-(-99 * len(values) // 100) - 1]


def kib_of(path, name):
    """A field of /proc/…/status or smaps_rollup."""
    fields = dict(line.split(":", 1) for line in Path(path).read_text().splitlines() if ":" in line)
    return int(fields[name].split()[0])


def rss(pid):
    """In KiB."""
    return kib_of(f"/proc/{pid}/status", "VmRSS")


def ms(seconds):
    return f"{seconds * 1000:.2f} ms"


def speed(size, seconds):
    return f"{size / 1e6 / seconds:.0f} MB/s"


class Table:
    def __init__(self):
        self.rows = [("what", "measured", "goal", "met")]

    def add(self, what, measured, goal="", met=None):
        self.rows.append((what, measured, goal, {None: "", True: "yes", False: "NO"}[met]))

    def at_most(self, what, value, goal, show):
        self.add(what, show(value), f"<= {show(goal)}", value <= goal)

    def at_least(self, what, ratio, goal):
        self.add(what, f"{ratio:.2f}", f">= {goal:.2f}", ratio >= goal)

    def show(self):
        widths = [max(len(row[column]) for row in self.rows) for column in range(4)]
        for number, row in enumerate(self.rows):
            print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())
            if number == 0:
                print("  ".join("-" * width for width in widths))
