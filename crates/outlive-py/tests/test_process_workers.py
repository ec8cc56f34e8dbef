"""Workers with processes of their own: what they do, what a kill leaves, and how they stop."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import outlive
import pytest
from conftest import Script, until

WORKER = """
    @outlive.handler("square")
    def square(run, input):
        return {{"square": input ** 2, "pid": os.getpid()}}

    @outlive.handler("hold")
    def hold(run):
        run.save(os.getpid())
        while True:
            run.check()
            time.sleep(0.05)

    @outlive.handler("hold_once")
    def hold_once(run):
        if run.attempt == 1:
            hold(run)
        return os.getpid()

    @outlive.handler("crash")
    def crash(run):
        os._exit(9)

    if __name__ == "__main__":
        with outlive.Worker(processes=2, start_method="{method}", grace={grace}) as worker:
            print("ready", *worker.pids, flush=True)
            {body}
"""
UNTIL_ASKED = "sys.stdin.readline()"


def started(script: Script, method: str = "spawn", grace: float = 10.0, body: str = UNTIL_ASKED) -> Any:
    process = script.start(WORKER.format(method=method, grace=grace, body=body))
    assert process.stdout is not None
    line = process.stdout.readline().split()
    assert line[:1] == ["ready"], (line, process.stderr.read() if process.stderr else "")
    return process, [int(pid) for pid in line[1:]]


def stopped(process: subprocess.Popen[str]) -> str:
    _, err = process.communicate("\n", timeout=60)
    assert process.returncode == 0, err
    return err


def holder(registry: outlive.Registry, run: outlive.RunView) -> int:
    """The process that does a run."""
    pid = until(lambda: registry.find(run.id).checkpoint)
    assert isinstance(pid, int)
    return pid


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_queued_runs_are_done_by_other_processes(script: Script, registry: outlive.Registry, method: str) -> None:
    process, pids = started(script, method)
    assert len(set(pids)) == 2 and process.pid not in pids
    queued = [registry.enqueue("square", n) for n in range(6)]
    done = [registry.wait(each, "60s") for each in queued]
    assert [each.result["square"] for each in done] == [n * n for n in range(6)], [each.raw for each in done]
    assert {each.result["pid"] for each in done} <= set(pids)
    stopped(process)
    assert not any(is_alive(pid) for pid in pids)


def test_killed_process_is_replaced_and_its_run_retried(script: Script, registry: outlive.Registry) -> None:
    held, retried = registry.enqueue("hold"), registry.enqueue("hold_once", max_attempts=2)
    process, _ = started(script)
    pid, other = holder(registry, held), holder(registry, retried)
    for each in (pid, other):
        os.kill(each, signal.SIGKILL)
    until(lambda: registry.find(held.id).state == "dead")
    view = registry.wait(retried, "60s")
    assert (view.state, view.attempt) == ("succeeded", 2), view.raw
    assert view.result not in (pid, other)
    queued = [registry.enqueue("square", n) for n in range(4)]
    assert {registry.wait(each, "60s").state for each in queued} == {"succeeded"}
    err = stopped(process)
    assert f"worker process {pid} ended with -9" in err


def test_handler_that_ends_its_process_stops_no_other(script: Script, registry: outlive.Registry) -> None:
    process, _ = started(script)
    crashed = registry.enqueue("crash")
    until(lambda: registry.find(crashed.id).state == "dead")
    assert registry.wait(registry.enqueue("square", 3), "60s").result["square"] == 9
    stopped(process)


def test_stop_waits_for_the_grace_and_interrupts_what_is_left(script: Script, registry: outlive.Registry) -> None:
    held = registry.enqueue("hold")
    process, pids = started(script, grace=0.2)
    holder(registry, held)
    stopped(process)
    assert registry.find(held.id).state == "interrupted"
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_processes_end_with_their_parent(script: Script, registry: outlive.Registry, number: int) -> None:
    held = registry.enqueue("hold")
    process, pids = started(script, grace=0.2)
    holder(registry, held)
    process.send_signal(number)
    process.wait(60)
    until(lambda: not any(is_alive(pid) for pid in pids))
    assert registry.find(held.id).state == "interrupted"


def test_worker_that_is_not_stopped_ends_with_its_program(script: Script, registry: outlive.Registry) -> None:
    started_last = "worker = outlive.Worker(processes=1).start()"
    waits = "print(outlive.wait(outlive.enqueue('square', 7).id, '60s')[0].result['square'], *worker.pids, flush=True)"
    process, _ = started(script, body=f"pass\n        {started_last}\n        {waits}")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    square, pid = map(int, out.split())
    assert square == 49 and not is_alive(pid)


def _top_level(run: outlive.OwnedRun) -> None: ...


def test_worker_that_processes_cannot_do_is_refused_with_a_hint(registry: outlive.Registry) -> None:
    def inner(run: outlive.OwnedRun) -> None: ...

    refused: list[tuple[dict[str, Any], str]] = [
        ({"handlers": {"a": lambda run: None}}, "cannot be sent to another process"),
        ({"handlers": {"a": inner}}, "cannot be sent to another process"),
        ({"handlers": {"a": _top_level}, "processes": 0}, "does nothing"),
        ({"handlers": {"a": _top_level}, "start_method": "fork"}, "start_method"),
        ({"handlers": {"a": _top_level}, "registry": "memory:"}, "in memory"),
    ]
    for options, says in refused:
        with pytest.raises(outlive.Invalid, match=says) as raised:
            outlive.Worker(**{"processes": 1, "registry": registry, **options})
        assert raised.value.hint
