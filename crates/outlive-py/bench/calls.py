"""Measures what the package costs: import, `check`, `progress`, a durable `save`. Prints medians of interleaved rounds."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import outlive

ROUNDS = 7


def each(function: Callable[[], object], times: int) -> float:
    """Seconds a call."""
    began = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - began) / times


def imported() -> float:
    """Seconds that `import outlive` adds to the start of an interpreter, by the interpreter's own clock."""
    code = "import time; a = time.perf_counter(); import outlive; print(time.perf_counter() - a)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    taken: dict[str, list[float]] = {"import": [], "check": [], "progress": [], "save": []}
    with tempfile.TemporaryDirectory() as place, outlive.Registry(f"sqlite:{place}/.outlive") as registry:
        with outlive.run("bench", registry=registry) as run:
            for _ in range(ROUNDS):
                taken["import"].append(imported())
                taken["check"].append(each(run.check, 20_000))
                taken["progress"].append(each(lambda: run.progress(1, 2), 20_000))
                taken["save"].append(each(lambda: run.save(1), 50))
    for name, rounds in taken.items():
        print(f"{name:<9}{statistics.median(rounds) * 1e6:10.2f} µs  (best {min(rounds) * 1e6:.2f}, worst {max(rounds) * 1e6:.2f})")


if __name__ == "__main__":
    main()
