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

import outlive

from . import _lifecycle
from ._attached import AttachedRun
from ._views import RunRef

_PLUGIN = "outlive"
_task_runs: dict[int, RunRef] = {}
_attached: dict[tuple[int, RunRef], AttachedRun] = {}


class OutlivePlugin(distributed.WorkerPlugin):  # type: ignore[misc,unused-ignore]
    """A plugin of workers: their tasks belong to the run that `ref` names."""

    def __init__(self, ref: RunRef) -> None:
        self.ref = ref

    def setup(self, worker: Any) -> None:
        _task_runs[os.getpid()] = self.ref

    def teardown(self, worker: Any) -> None:
        _task_runs.pop(os.getpid(), None)


def _of_task() -> AttachedRun | None:
    ref = _task_runs.get(os.getpid())
    if ref is None:
        return None
    key = (os.getpid(), ref)
    if key not in _attached:
        _attached[key] = outlive.attach(ref)
    return _attached[key]


_lifecycle.fallbacks.append(_of_task)


@contextlib.contextmanager
def run(client: Any, name: str | None = None, *, progress: bool = True, **options: Any) -> Iterator[outlive.Run]:
    """A run whose tasks are those of `client`. Takes what `outlive.run` takes."""
    with outlive.run(name, strict=True, **options) as begun:
        client.register_plugin(OutlivePlugin(begun.ref), name=_PLUGIN)
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
            with contextlib.suppress(Exception):
                client.unregister_worker_plugin(_PLUGIN)


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
