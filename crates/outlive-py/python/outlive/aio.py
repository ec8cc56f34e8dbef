"""asyncio: the same calls as coroutines. No call blocks the event loop, and no heartbeat depends on it.

>>> import asyncio
>>> async def main() -> str:
...     async with run("fetch", registry="memory:") as fetched:
...         await save(fetched, {"page": 1})
...         return fetched.checkpoint["page"]
>>> asyncio.run(main())
1
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from . import _api, _lifecycle, _work
from ._api import run
from ._attached import AttachedRun
from ._inputs import Duration
from ._owned import OwnedRun
from ._registry import opened
from ._runs import Run, finish
from ._steps import Step
from ._views import RunRef, RunView, Stop

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._inputs import Options

__all__ = [
    "artifact",
    "attach",
    "call",
    "cancel",
    "enqueue",
    "find",
    "manifest",
    "ps",
    "run",
    "save",
    "start",
    "step",
    "wait",
]

T = TypeVar("T")


async def call(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Makes a blocking call on a thread."""
    return await asyncio.to_thread(function, *args, **kwargs)


async def start(name: str | None = None, **options: Unpack[Options]) -> Run:
    """`outlive.start`."""
    return await call(_api.start, name, **options)


async def save(run: Run, value: Any) -> bool:
    """`run.save`."""
    return await call(run.save, value)


async def find(text: str) -> RunView:
    """`outlive.find`."""
    return await call(_api.find, text)


async def ps(**wanted: Any) -> list[RunView]:
    """`outlive.ps`."""
    return await call(_api.ps, **wanted)


async def wait(runs: Any, timeout: Duration | None = None) -> list[RunView]:
    """`outlive.wait`."""
    return await call(_api.wait, runs, timeout)


async def enqueue(kind: str, input: Any = None, **options: Any) -> RunView:
    """`outlive.enqueue`."""
    return await call(_work.enqueue, kind, input, **options)


async def cancel(run: str | RunView, reason: str | None = None, *, grace: Duration | None = None) -> RunView:
    """`Registry.cancel`, in the registry that is found from here."""
    return await call(lambda: opened(None).cancel(run, reason, grace=grace))


async def attach(ref: RunRef | None = None, **options: Any) -> AttachedRun:
    """`outlive.attach`."""
    return await call(_api.attach, ref, **options)


async def artifact(run: Run, uri: str) -> bool:
    """`run.artifact`."""
    return await call(run.artifact, uri)


async def manifest(run: Run, ref: str) -> bool:
    """`run.manifest`."""
    return await call(run.manifest, ref)


@contextlib.asynccontextmanager
async def step(run: Run, name: str, *inputs: Any) -> AsyncIterator[Step]:
    """`run.step`, around a block of a coroutine.

    >>> async def report() -> int:
    ...     async with run("report", registry="memory:") as begun:
    ...         async with step(begun, "fetch", "orders since May") as fetch:
    ...             if not fetch.done:
    ...                 fetch.set(1250)
    ...         return fetch.value
    >>> asyncio.run(report())
    1250
    """
    made = run.step(name, *inputs)
    # The current step is that of the task, which a thread would not change.
    await call(made._begin)
    made._enter()
    try:
        yield made
    except BaseException as error:
        made._leave()
        await asyncio.shield(call(made._finish, error))
        raise
    made._leave()
    await asyncio.shield(call(made._finish, None))


class _Beginning:
    """A run that is being started on a thread. A task that is cancelled meanwhile gives it up, and the thread ends it."""

    def __init__(self, start: Callable[[], Run]) -> None:
        self._start = start
        self._turn = threading.Lock()
        self._given_up: BaseException | None = None
        self._begun: Run | None = None

    def begin(self) -> Run:
        begun = self._start()
        with self._turn:
            self._begun = begun
            given_up = self._given_up
        if given_up is not None:
            finish(begun, given_up)
        return begun

    def give_up(self, error: BaseException) -> Run | None:
        """Answers with the run if it has begun, to be ended by the caller."""
        with self._turn:
            self._given_up = error
            return self._begun


class Watched:
    """A run of a task, which is cancelled as soon as there is a reason to stop."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        self._is_left = False
        self._descriptor: int | None = None
        handle = run._handle if isinstance(run, OwnedRun) else None
        if handle is not None:
            self._descriptor = handle.stop_descriptor()
            self._loop.add_reader(self._descriptor, self._look)
        else:
            # There is no descriptor where another process owns the run, or the registry is not reached yet.
            run.on_stop(self._call_back)

    @classmethod
    async def begin(cls, start: Callable[[], Run], signals: bool) -> Watched:
        """Starts a run on a thread, for the task that asks."""
        if signals:
            # A thread cannot install handlers.
            _lifecycle.handle_signals()
        beginning = _Beginning(start)
        try:
            return cls(await call(beginning.begin))
        except asyncio.CancelledError as error:
            begun = beginning.give_up(error)
            if begun is not None:
                await asyncio.shield(call(finish, begun, error))
            raise

    def _call_back(self, stop: Stop) -> None:
        with contextlib.suppress(RuntimeError):
            # The loop may have been closed.
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._ignore()
        if not self._is_left and self._task is not None and self.run.stop_requested is not None:
            self._task.cancel()

    def _ignore(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._loop.remove_reader(descriptor)

    async def end(self, error: BaseException | None) -> None:
        """Records how a block ended. A cancellation that a stop has caused is raised as what asked for it."""
        self._is_left = True
        self._ignore()
        stop = self.run.stop_requested
        if isinstance(error, asyncio.CancelledError) and stop is not None:
            stopped = self.run._stopped_by(stop)
            await asyncio.shield(call(finish, self.run, stopped))
            raise stopped from error
        await asyncio.shield(call(finish, self.run, error))
