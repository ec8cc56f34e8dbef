"""Dask: a run around the work of a client.

    with outlive.dask.run(client, "train") as run:
        client.gather(client.map(work, parts))

Tasks find the run with `outlive.current()`. A request to stop cancels the futures of the client, and progress is counted from
them. A task that continues after its driver has died finds with `verify()` that its claim is over.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import distributed  # type: ignore[import-untyped,unused-ignore]
from dask import annotate  # type: ignore[attr-defined,import-untyped,unused-ignore]

import outlive

from . import _lifecycle
from ._attached import AttachedRun
from ._views import RunRef

#: What the tasks of a run are annotated with: its reference. Workers may serve several drivers at once.
_ANNOTATION = "outlive_run"
#: How many runs a worker process knows at once.
_MOST_ATTACHED = 16
_attached: dict[tuple[int, RunRef], AttachedRun] = {}


def _of_task() -> AttachedRun | None:
    """The run of the task that this thread of a worker executes."""
    try:
        worker = distributed.get_worker()
        task = worker.state.tasks.get(worker.get_current_task())
    except (AttributeError, ValueError):
        return None
    said = (task.annotations or {}).get(_ANNOTATION) if task is not None else None
    if said is None:
        return None
    key = (os.getpid(), RunRef(*said))
    if key not in _attached:
        attached = outlive.attach(key[1])
        while len(_attached) >= _MOST_ATTACHED:
            _attached.pop(next(iter(_attached)), None)
        _attached[key] = attached
    return _attached[key]


_lifecycle.fallbacks.append(_of_task)


@contextlib.contextmanager
def run(client: Any, name: str | None = None, *, progress: bool = True, **options: Any) -> Iterator[outlive.Run]:
    """A run whose tasks are those that the block gives to `client`. Takes what `outlive.run` takes.

    Threads that give tasks to the client do so in the context of the block: `contextvars.copy_context().run(...)`.
    """
    with outlive.run(name, strict=True, **options) as begun, annotate(**{_ANNOTATION: tuple(begun.ref)}):
        over = threading.Event()
        watcher = threading.Thread(target=_watch, args=(client, begun, over, progress), daemon=True)
        watcher.start()
        try:
            yield begun
        except Exception:
            # Futures that a stop has cancelled fail with an error of Dask; what is recorded is why.
            begun.check()
            raise
        finally:
            over.set()
            watcher.join()


def _watch(client: Any, begun: outlive.Run, over: threading.Event, progress: bool) -> None:
    """Cancels the futures of the client when the run should stop, and counts those that are finished."""
    while not over.wait(0.2):
        known = dict(client.futures)
        if begun.stop_requested is not None:
            client.cancel([distributed.Future(key, client) for key in known], force=True)
            return
        if progress and known:
            finished = sum(state.status == "finished" for state in known.values())
            begun.progress(finished, len(known))
