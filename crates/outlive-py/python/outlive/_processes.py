"""Processes of a worker: each claims for itself, and a process that dies is replaced.

A handler that holds the interpreter's lock, or crashes it, then stops no other. The processes are started by `spawn` or
`forkserver`, so that they inherit no thread of the parent.
"""

from __future__ import annotations

import pickle
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import _lifecycle
from ._lifecycle import log
from .errors import Invalid

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from multiprocessing.util import Finalize

_START_METHODS = ("spawn", "forkserver")
#: A process that lived for less than this is replaced after a pause that doubles, up to the longest, in seconds.
_SETTLED, _FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 0.2, 30.0
#: How long a process may take to end after it was terminated, in seconds.
_LAST_WAIT = 5.0


def checked(processes: int, method: str, url: str, handlers: Mapping[str, Callable[..., Any]]) -> None:
    """Refuses what other processes could not do."""
    if processes < 1:
        raise Invalid(f"a worker with {processes} processes does nothing", hint="give `processes=1` or more")
    if method not in _START_METHODS:
        raise Invalid(f"`start_method` is {method!r}", hint='give "spawn" or "forkserver"')
    if url == "memory:":
        hint = "use `sqlite:PATH`, or threads: `slots=N` without `processes`"
        raise Invalid("a registry in memory ends with its process, so other processes cannot work on it", hint=hint)
    for kind, handler in handlers.items():
        try:
            pickle.dumps(handler)
        except Exception as error:
            hint = "define the handler at the top level of a module, or use threads: `slots=N` without `processes`"
            raise Invalid(f"the handler of `{kind}` cannot be sent to another process: {error}", hint=hint) from error


class Processes:
    """The processes of one worker."""

    def __init__(self, count: int, method: str, arguments: tuple[Any, ...], grace: float) -> None:
        self._count, self._method, self._arguments, self._grace = count, method, arguments, grace
        self._stopping = threading.Event()
        #: Each process, what asks it to stop, and when it was started.
        self._running: list[tuple[BaseProcess, Connection, float]] = []
        self._thread: threading.Thread | None = None
        self._at_exit: Finalize | None = None

    def start(self) -> None:
        """Starts them, and the thread that replaces those that die."""
        from multiprocessing.util import Finalize

        # Before `multiprocessing` waits at exit for processes that nothing asks to end.
        self._at_exit = Finalize(None, self.stop, exitpriority=100)
        self._running = [self._begin() for _ in range(self._count)]
        self._thread = threading.Thread(target=self._watch, name="outlive-processes", daemon=True)
        self._thread.start()

    def _begin(self) -> tuple[BaseProcess, Connection, float]:
        import multiprocessing

        context: Any = multiprocessing.get_context(self._method)
        asked, asks = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(asked, *self._arguments), name="outlive-worker")
        process.start()
        asked.close()
        return process, asks, time.monotonic()

    def _watch(self) -> None:
        from multiprocessing.connection import wait

        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            wait([process.sentinel for process, _, _ in self._running], timeout=0.5)
            for place, (process, asks, began) in enumerate(self._running):
                if process.is_alive() or self._stopping.is_set():
                    continue
                log.warning("outlive: worker process %s ended with %s; another is started", process.pid, process.exitcode)
                asks.close()
                pause = _FIRST_PAUSE if time.monotonic() - began >= _SETTLED else min(pause * 2, _LONGEST_PAUSE)
                if not self._stopping.wait(pause):
                    self._running[place] = self._begin()

    def pids(self) -> list[int]:
        """The ids of the processes that live."""
        return [process.pid for process, _, _ in self._running if process.pid is not None and process.is_alive()]

    def stop(self) -> None:
        """Asks each to stop, and ends those that have not stopped after the grace period."""
        self._stopping.set()
        if self._at_exit is not None:
            self._at_exit.cancel()
        if self._thread is not None:
            self._thread.join()
        for _, asks, _ in self._running:
            asks.close()
        deadline = time.monotonic() + self._grace + _LAST_WAIT
        for process, _, _ in self._running:
            process.join(max(0.0, deadline - time.monotonic()))
            for end in (process.terminate, process.kill):
                if process.is_alive():
                    end()
                    process.join(_LAST_WAIT)
        self._running = []


def _work(asked: Connection, url: str, handlers: Mapping[str, Callable[..., Any]], slots: int, grace: float) -> None:
    """Works until the parent asks this process to stop, or has ended."""
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    from ._registry import close_all
    from ._work import Worker

    # Ctrl-C reaches every process of the terminal: the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _lifecycle.handle_signals()
    parent = parent_process()
    with Worker(handlers, slots=slots, registry=url, grace=grace):
        wait([asked] if parent is None else [asked, parent.sentinel])
    close_all()
