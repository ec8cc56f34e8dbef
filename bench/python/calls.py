"""Calls of the Python package, for `outlive-bench python`: does a slice of calls for each line of its input.

A line is `NAME TIMES`; the answer is the seconds that the calls took, by this process's clock. `NAME` is `check`, `progress`,
`save`, or `import`, which starts another interpreter and measures `import outlive` there.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import outlive

IMPORT = "import time; a = time.perf_counter(); import outlive; print(time.perf_counter() - a)"


def took(call: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - began


def imported(times: int) -> float:
    """By the new interpreter's own clock: its start is not the package's."""
    words = [sys.executable, "-c", IMPORT]
    return sum(float(subprocess.run(words, capture_output=True, check=True).stdout) for _ in range(times))


def main(url: str) -> None:
    with outlive.Registry(url) as registry, outlive.run("bench", registry=registry) as run:
        calls: dict[str, Callable[[], object]] = {
            "check": run.check,
            "progress": lambda: run.progress(1, 2),
            "save": lambda: run.save({"epoch": 1}),
        }
        for line in sys.stdin:
            name, times = line.split()
            print(imported(int(times)) if name == "import" else took(calls[name], int(times)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
