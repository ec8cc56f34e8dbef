"""asyncio: tasks that are cancelled, and the calls as coroutines."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import outlive
import pytest
from conftest import Script, until
from outlive import aio


def test_handler_is_not_installed_for_a_task_where_signals_are_off(registry: outlive.Registry) -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:

        async def main(**options: Any) -> None:
            async with outlive.run("it", registry=registry, **options):
                pass

        asyncio.run(main(signals=False))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        asyncio.run(main())
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_task_that_is_cancelled_while_it_enters_leaves_no_run(
    registry: outlive.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, begins = threading.Event(), threading.Event()
    original = outlive.run._own

    def slow(self: Any) -> Any:
        begun = original(self)
        starts.set()
        assert begins.wait(30)
        return begun

    monkeypatch.setattr(outlive.run, "_own", slow)

    async def main() -> None:
        async def work() -> None:
            async with outlive.run("it", registry=registry):
                pytest.fail("the block was entered")

        task = asyncio.create_task(work())
        await asyncio.to_thread(starts.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        begins.set()

    asyncio.run(main())
    assert registry.find("it").state == "interrupted"
    assert outlive.current() is None


def test_task_of_an_attached_run_is_cancelled(script: Script, registry: outlive.Registry) -> None:
    with outlive.run("it", registry=registry) as run:
        code = """
            import asyncio
            async def main():
                async with outlive.run() as run:
                    print('ready', run.id, flush=True)
                    try:
                        await asyncio.sleep(60)
                    except asyncio.CancelledError:
                        print('cancelled', flush=True)
                        raise
            asyncio.run(main())
            """
        process = script.start(code, **run.child_env())
        assert process.stdout is not None and process.stdout.readline() == f"ready {run.id}\n"
        registry.cancel(run.id, "enough")
        out, err = process.communicate(timeout=60)
        assert out == "cancelled\n" and "outlive.errors.Cancelled" in err, err
        until(lambda: run.stop_requested)


def test_task_whose_run_begins_late_is_cancelled(
    registry: outlive.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = outlive.run._make
    away = threading.Event()

    def make(self: Any) -> Any:
        if not away.is_set():
            raise outlive.Unavailable("away")
        return made(self)

    monkeypatch.setattr(outlive.run, "_make", make)

    async def main() -> None:
        async with outlive.run("late", registry=registry) as run:
            assert run.id == ""
            away.set()
            await asyncio.to_thread(until, lambda: run.id)
            registry.cancel(run.id, "enough")
            await asyncio.sleep(60)

    with pytest.warns(RuntimeWarning), pytest.raises(outlive.Cancelled):
        asyncio.run(main())
    assert registry.find("late").state == "cancelled"


def test_calls_are_there_as_coroutines(url: str) -> None:
    async def main() -> None:
        async with aio.run("it") as run:
            part = await aio.attach(run.ref)
            await aio.artifact(part, "part-0")
            await aio.manifest(run, "manifest")
            async with aio.step(run, "outer") as outer:
                async with aio.step(run, "inner") as inner:
                    inner.set(1)
                outer.set(2)
            with pytest.raises(ZeroDivisionError):
                async with aio.step(run, "fails"):
                    _ = 1 / 0
            queued = await aio.enqueue("work", {"n": 1})
            assert (await aio.cancel(queued, "a test")).state == "cancelled"
            view = await aio.find("it")
            assert (view.artifacts, view.manifest) == (["part-0"], "manifest")
            run.interrupt("a test")
        async with aio.run("it", resume=True) as run:
            async with aio.step(run, "outer") as outer:
                assert outer.done and outer.value == 2

    asyncio.run(main())
    steps = [view.raw["spec"]["step"] for view in outlive.ps(steps=True) if "step" in view.raw["spec"]]
    assert [step["name"] for step in steps if step.get("parent")] == ["inner"], steps
