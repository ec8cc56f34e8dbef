"""The same on every store: heartbeats while native code holds the interpreter's lock, and forks.

`OUTLIVE_PY_GIL_SECONDS=60` and `OUTLIVE_PY_FORKS=100` are the long forms.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import outlive
import pytest
from conftest import Script
from servers import Bucket

#: How long the lock is held, and the lease meanwhile, in seconds.
HELD = float(os.environ.get("OUTLIVE_PY_GIL_SECONDS", "6"))
LEASE = 6.0 if HELD >= 30 else 3.0
ROUNDS = int(os.environ.get("OUTLIVE_PY_FORKS", "5"))


@pytest.fixture(params=["sqlite", "postgres", "s3"])
def shared(request: pytest.FixtureRequest, tmp_path: object) -> Iterator[outlive.Registry]:
    """A registry of the test's own in each store."""
    name = f"t{abs(hash((request.node.name, str(tmp_path)))) % 10**9}"
    if request.param == "sqlite":
        url = f"sqlite:{tmp_path}/shared"
    elif request.param == "postgres":
        url = f"{request.getfixturevalue('database')}?schema={name}"
    else:
        server: Bucket = request.getfixturevalue("bucket")
        url = server.url(name)
    with outlive.Registry(url) as registry:
        yield registry


def test_beats_go_on_and_a_cancel_stops_none_while_the_lock_is_held(script: Script, shared: outlive.Registry) -> None:
    process = script.start(
        f"""
        import ctypes
        with outlive.run('it', lease={LEASE}, beat={LEASE / 3}) as run:
            print('ready', flush=True)
            ctypes.PyDLL(None).sleep({int(HELD)})
            print('back', flush=True)
            sys.stdin.readline()
            run.check()
        """,
        OUTLIVE_REGISTRY=shared.url,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    seen: dict[object, int] = {}
    began, cancelled = time.monotonic(), False
    while time.monotonic() - began < HELD - 0.5:
        view = shared.find("it")
        # A run whose owner is silent for more than two beats is late.
        standing = (view.state, view.health, (view.reason or "")[:6] == "silent")
        seen[standing] = seen.get(standing, 0) + 1
        if not cancelled and time.monotonic() - began > HELD / 2:
            shared.cancel("it", "while the lock is held")
            cancelled = True
        time.sleep(0.1)
    assert set(seen) == {("running", "healthy", False)}, seen
    assert process.stdout.readline() == "back\n"
    _, err = process.communicate("\n", timeout=60)
    assert "Cancelled" in err and shared.find("it").state == "cancelled", err


FORKS = {
    "os.fork, os._exit": "child = os.fork()\nif child == 0: work(run); os._exit(7)",
    "os.fork, sys.exit": "child = os.fork()\nif child == 0: work(run); sys.exit(7)",
    "os.fork, del": "child = os.fork()\nif child == 0:\n    work(run)\n    del run\n    os._exit(7)",
    "multiprocessing": "process = multiprocessing.get_context('fork').Process(target=lambda: (work(run), os._exit(7)))\n"
    "process.start(); child = process.pid",
    "while another thread saves": "child = os.fork()\nif child == 0: work(run); os._exit(7)",
}


@pytest.mark.parametrize("how", FORKS)
def test_fork_leaves_the_parent_alone_and_the_child_clear(script: Script, shared: outlive.Registry, how: str) -> None:
    forks = FORKS[how].replace("\n", "\n                ")
    thread = "threading.Thread(target=beside, daemon=True).start()" if "thread" in how else "pass"
    done = script(
        f"""
        import multiprocessing, threading
        def beside():
            while not over.is_set():
                run.save('beside')
        def work(run):
            for call in (lambda: run.check(), lambda: run.progress(1), lambda: run.save('child'), lambda: run.succeed()):
                try:
                    call()
                    os._exit(1)
                except outlive.ForkedRun as error:
                    if not error.hint:
                        os._exit(2)
            if outlive.current() is not None:
                os._exit(3)
            if round == 0:
                with outlive.run('child') as own:
                    own.save('mine')
        over = threading.Event()
        with outlive.run('parent') as run:
            {thread}
            for round in range({ROUNDS}):
                {forks}
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7, round
                run.check()
            over.set()
            run.save('parent')
        """,
        OUTLIVE_REGISTRY=shared.url,
    )
    assert done.returncode == 0, done.stderr
    parent, child = shared.find("parent"), shared.find("child")
    assert (parent.state, parent.attempt, parent.checkpoint) == ("succeeded", 1, "parent")
    assert (child.state, child.checkpoint) == ("succeeded", "mine")


def test_forked_workers_of_a_loader_leave_the_parent_alone(script: Script, shared: outlive.Registry) -> None:
    """Two workers at once, which collect garbage and end as `multiprocessing` ends them, with finalizers."""
    done = script(
        f"""
        import gc, multiprocessing
        context = multiprocessing.get_context('fork')
        def load(queue, number):
            global run
            try:
                run.check()
            except outlive.ForkedRun:
                queue.put(number)
            del run
            gc.collect()
        with outlive.run('parent') as run:
            for round in range({ROUNDS}):
                queue = context.Queue()
                loaders = [context.Process(target=load, args=(queue, number)) for number in range(2)]
                for loader in loaders: loader.start()
                assert sorted(queue.get(timeout=60) for _ in loaders) == [0, 1], round
                for loader in loaders: loader.join()
                assert [loader.exitcode for loader in loaders] == [0, 0], round
                run.check()
            run.save('parent')
        """,
        OUTLIVE_REGISTRY=shared.url,
    )
    assert done.returncode == 0, done.stderr
    assert [(view.name, view.state, view.checkpoint) for view in shared.list()] == [("parent", "succeeded", "parent")]


def test_preforked_servers_have_runs_of_their_own(script: Script, shared: outlive.Registry) -> None:
    """The registry is opened before the fork. Parent and child both use what they have of it afterwards."""
    done = script(
        f"""
        with outlive.Registry() as registry:
            assert list(registry.list()) == []
            for round in range({ROUNDS}):
                child = os.fork()
                if child == 0:
                    try:
                        registry.find('x')
                    except outlive.ForkedRun:
                        with outlive.run(f'child-{{round}}') as run:
                            run.save(os.getpid())
                        os._exit(7)
                    os._exit(1)
                registry.start(f'parent-{{round}}').succeed()
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7, round
        """,
        OUTLIVE_REGISTRY=shared.url,
    )
    assert done.returncode == 0, done.stderr
    views = list(shared.list())
    assert {view.state for view in views} == {"succeeded"}
    names = {f"{who}-{number}" for who in ("parent", "child") for number in range(ROUNDS)}
    assert {view.name for view in views} == names and len(views) == 2 * ROUNDS
