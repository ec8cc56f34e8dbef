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
from collections.abc import Callable
from contextvars import Token
from typing import TYPE_CHECKING, Any, TypeVar

from . import _api, _lifecycle
from ._api import finish, run
from ._inputs import Duration
from ._owned import OwnedRun
from ._runs import Run
from ._views import RunView
from .errors import Cancelled, LeaseOver, Lost, Stopped, TimedOut

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._inputs import Options

__all__ = ["call", "find", "ps", "run", "save", "start", "wait"]

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


async def entered(start: Callable[[], Run]) -> tuple[Run, Token[Run | None]]:
    """Starts a run for the task that asks, and has the task cancelled as soon as there is a reason to stop."""
    _lifecycle.handle_signals()
    begun = await call(start)
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    handle = begun._handle if isinstance(begun, OwnedRun) else None
    if task is not None and handle is not None:

        def stop() -> None:
            loop.remove_reader(descriptor)
            if begun.stop_requested is not None:
                task.cancel()

        descriptor = handle.stop_descriptor()
        loop.add_reader(descriptor, stop)
    return begun, _lifecycle.current_run.set(begun)


async def left(ended: Run, error: BaseException | None) -> None:
    """Records how a block ended. A cancellation that a stop has caused is raised as what asked for it."""
    if isinstance(ended, OwnedRun) and ended._handle is not None:
        asyncio.get_running_loop().remove_reader(ended._handle.stop_descriptor())
    stop = ended.stop_requested
    if isinstance(error, asyncio.CancelledError) and stop is not None:
        kinds: dict[str, Stopped] = {"timed_out": TimedOut(), "lost": Lost(), "lease_over": LeaseOver()}
        stopped = kinds.get(stop.kind) or Cancelled(stop.by, stop.reason)
        await asyncio.shield(call(finish, ended, stopped))
        raise stopped from error
    await asyncio.shield(call(finish, ended, error))
