"""kill -9 of a driver and of its workers: what the next read says, and that the run is resumed once.

`OUTLIVE_PY_KILLS=20` is the long form.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress

import outlive
import pytest
from conftest import Script, kill_rounds, until

Command = Callable[..., "subprocess.CompletedProcess[str]"]

DRIVER = """
    import multiprocessing, subprocess
    if __name__ == '__main__':
        with outlive.run('{name}') as run:
            run.save(run.attempt)
            if run.attempt == 1:
                {starts}
                print(pid, flush=True)
                {waits}
            run.save('done')
"""
#: How the driver starts a process, and whether that holds on to the run when its driver is gone.
STARTS = {
    "plain": ("pid = 0", False),
    "subprocess": ("pid = subprocess.Popen(['sleep', '60']).pid", False),
    "os.fork": ("pid = os.fork()\n                if pid == 0: time.sleep(60); os._exit(0)", True),
    **{
        method: (
            f"child = multiprocessing.get_context('{method}').Process(target=time.sleep, args=(60,)); child.start(); pid = child.pid",
            method == "fork",
        )
        for method in ("fork", "forkserver", "spawn")
    },
}


def started(script: Script, name: str, starts: str, waits: str) -> tuple[subprocess.Popen[str], int]:
    process = script.start(DRIVER.format(name=name, starts=starts, waits=waits))
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.strip().isdigit(), (line, process.stderr.read() if process.stderr else "")
    return process, int(line)


@pytest.mark.parametrize("how", STARTS)
@kill_rounds
def test_killed_driver_is_dead_or_orphaned_and_resumed_once(
    script: Script, registry: outlive.Registry, command: Command, how: str, round: int
) -> None:
    starts, holds_on = STARTS[how]
    process, child = started(script, "it", starts, "time.sleep(60)")
    try:
        process.kill()
        process.wait()
        view = registry.find("it")
        if holds_on:
            assert (view.state, view.health, view.leftovers) == ("running", "orphaned", (child,)), view.reason
            assert str(child) in (view.reason or "")
            assert command("resume", "it").returncode != 0, "it was resumed beside its last attempt"
        else:
            assert view.state == "dead", (view.state, view.health, view.reason)
        assert view.attempt == 1 and view.checkpoint == 1
    finally:
        with suppress(ProcessLookupError):
            os.kill(child or process.pid, signal.SIGKILL)
    until(lambda: registry.find("it").state == "dead")
    resumed = command("resume", "it")
    assert resumed.returncode == 0, resumed.stderr
    view = registry.wait("it", "60s")
    assert (view.state, view.attempt, view.checkpoint) == ("succeeded", 2, "done"), view.raw
    assert command("resume", "it").stdout == "nothing to resume\n"
    assert registry.find("it").attempt == 2


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@kill_rounds
def test_killed_worker_is_for_its_driver_to_judge(
    script: Script, registry: outlive.Registry, method: str, round: int
) -> None:
    waits = "child.join(); time.sleep(0.2); sys.stdin.readline(); raise RuntimeError(child.exitcode)"
    process, child = started(script, "it", STARTS[method][0], waits)
    os.kill(child, signal.SIGKILL)
    view = registry.find("it")
    assert (view.state, view.health) == ("running", "healthy"), view.reason
    process.communicate("\n", timeout=60)
    view = registry.find("it")
    assert (view.state, view.error_type) == ("failed", "RuntimeError")
    assert (view.error_message or "").startswith("-9")
