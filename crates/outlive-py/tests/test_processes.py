"""Processes: beats while native code holds the interpreter's lock, death, resumption, forks, children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import outlive
import pytest
from conftest import Script, until

Command = Callable[..., "subprocess.CompletedProcess[str]"]
READY = "print('ready', flush=True)"


def ready(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", (line, process.stderr.read() if process.stderr else "")
    return process


def test_killed_script_is_dead_and_resumed_with_its_checkpoint(
    script: Script, registry: outlive.Registry, command: Command
) -> None:
    code = f"""
        with outlive.run('train') as run:
            first = run.checkpoint or 0
            for epoch in range(first, 4):
                if epoch == 2 and run.attempt == 1:
                    {READY}
                    time.sleep(60)
                run.save(epoch + 1)
        """
    process = ready(script.start(code))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    dead = until(lambda: registry.find("train") if registry.find("train").state == "dead" else None)
    assert isinstance(dead, outlive.RunView) and dead.checkpoint == 2
    resumed = command("resume", "train")
    assert resumed.returncode == 0, resumed.stderr
    view = registry.wait(dead.id, "60s")
    assert (view.state, view.attempt, view.checkpoint) == ("succeeded", 2, 4), view.raw
    # What has succeeded is not resumed again.
    assert command("resume", "train").stdout == "nothing to resume\n"
    assert registry.find(dead.id).attempt == 2


def test_script_attaches_inside_the_command(script: Script, registry: outlive.Registry, command: Command) -> None:
    script.path.write_text(
        "import outlive, subprocess, sys\n"
        "with outlive.run('ignored') as run:\n"
        "    run.save({'from': 'python'})\n"
        "    for _ in outlive.track(range(3)): pass\n"
        "    child = 'import outlive; outlive.current().artifact(\"made-by-a-child\")'\n"
        "    subprocess.run([sys.executable, '-c', child], check=True)\n"
        "    print(run.id)\n"
    )
    done = command("run", "--name", "outer", "--", sys.executable, str(script.path))
    assert done.returncode == 0, done.stderr
    view = registry.find("outer")
    assert done.stdout.strip() == view.id and [each.name for each in registry.list()] == ["outer"]
    assert view.state == "succeeded" and view.checkpoint == {"from": "python"}
    assert view.progress["done"] == 3 and view.artifacts == ["made-by-a-child"]
    script.path.write_text("import outlive\nwith outlive.run(): raise ValueError('x')\n")
    assert command("run", "--name", "fails", "--", sys.executable, str(script.path)).returncode == 1
    assert registry.find("fails").state == "failed"


def test_child_belongs_to_a_run_by_its_environment(registry: outlive.Registry) -> None:
    with outlive.run("it", registry=registry) as run:
        code = "import outlive; run = outlive.current(); run.save(run.attempt); print(run.id)"
        env = {**os.environ, **run.child_env()}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == run.id
    assert registry.find("it").checkpoint == 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_attach_by_reference(script: Script, registry: outlive.Registry, method: str) -> None:
    done = script(
        f"""
        import multiprocessing
        def part(arguments):
            ref, number = arguments
            run = outlive.attach(ref)
            run.verify()
            run.artifact(f'part-{{number}}')
            return number
        if __name__ == '__main__':
            with outlive.run('pool') as run:
                with multiprocessing.get_context('{method}').Pool(2) as pool:
                    print(sorted(pool.map(part, [(run.ref, n) for n in range(4)])))
        """
    )
    assert done.stdout == "[0, 1, 2, 3]\n", done.stderr
    view = registry.find("pool")
    assert view.state == "succeeded" and sorted(view.artifacts) == [f"part-{n}" for n in range(4)]
    assert len(list(registry.list())) == 1, "a child made a run of its own"


def test_forked_child_of_a_killed_parent_is_named(script: Script, registry: outlive.Registry) -> None:
    process = script.start(
        """
        with outlive.run('it'):
            pid = os.fork()
            if pid == 0:
                time.sleep(60); os._exit(0)
            print(pid, flush=True)
            time.sleep(60)
        """
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        view = until(lambda: registry.find("it") if registry.find("it").health == "orphaned" else None)
        assert isinstance(view, outlive.RunView) and view.leftovers == (child,)
    finally:
        os.kill(child, signal.SIGKILL)
    assert until(lambda: registry.find("it").state == "dead")
