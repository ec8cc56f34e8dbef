"""Work: runs that wait in the registry, and the workers that do them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from . import _lifecycle, _outlive
from ._documents import input_type, plain, read_as
from ._endings import WORKER_ENDS
from ._inputs import Duration, Keys, dumped, keys_of, labels_of, seconds
from ._lifecycle import log
from ._owned import OwnedRun
from ._registry import Registry, opened
from ._views import RunView, Stop
from .errors import Error, Invalid, hinted

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from ._processes import Processes

#: What does the runs of a kind: it takes the run, and its input as well where it has a second parameter.
Handler = Callable[..., Any]
F = TypeVar("F", bound=Handler)

_handlers: dict[str, Handler] = {}
_SHORTEST, _LONGEST, _REAP_EVERY = 0.05, 1.0, 10.0
#: How long a handler has that is asked to stop after the grace of its worker, in seconds.
_LAST_WORD = 2.0


def enqueue(
    kind: str,
    input: Any = None,
    *,
    name: str | None = None,
    labels: Mapping[str, object] | None = None,
    key: Keys = (),
    priority: int = 0,
    timeout: Duration | None = None,
    max_attempts: int | None = None,
    traceparent: str | None = None,
    registry: str | Registry | None = None,
) -> RunView:
    """Makes a run that waits for a worker with a handler of its kind. Lower priorities are claimed first.

    The input is JSON of at most 1 MiB, a dataclass or a pydantic model. Where another run that has not ended has the same
    unique key, that run is the answer. The run belongs to the span of a trace that `traceparent` or else `TRACEPARENT` of the
    environment names; its handler finds that in `run.traceparent`.

    With `max_attempts=N` the run is retried until it succeeds or N attempts have failed; what a worker's death or shutdown
    ended does not count. The handler may then be called again after a crash: it is idempotent, or continues from its
    checkpoint. Without it the configuration of the kind says whether a run is retried.

    >>> registry = Registry("memory:")
    >>> enqueue("resize", {"path": "a.png"}, registry=registry).input
    {'path': 'a.png'}
    """
    found = opened(registry)
    spec = {
        "kind": kind,
        "name": name,
        "labels": labels_of(labels or {}),
        "keys": keys_of(key),
        "priority": priority,
        "timeout": seconds(timeout),
        "max_attempts": max_attempts,
        "traceparent": traceparent,
    }
    text = dumped(spec | {"input": plain(input)}, "input")
    with hinted("`help(outlive.enqueue)` says what each option takes"):
        id, _ = found._native.enqueue(text)
    return found.find(id)


def handler(kind: str) -> Callable[[F], F]:
    """Has workers of this process call a function with every run of a kind that they claim.

    The function takes the run, and its input where it has a second parameter: as JSON, or as the dataclass or pydantic
    model that the parameter is annotated with. What it returns is the run's result.
    """

    def decorate(function: F) -> F:
        _handlers[kind] = function
        return function

    return decorate


class Worker:
    """Claims waiting runs and has handlers do them, on as many threads as it has slots; with `processes=N` on as many
    threads in each of N processes, which are replaced when they die. Their handlers are functions at the top level of a
    module, and the program that makes such a worker has an `if __name__ == "__main__":`, as `multiprocessing` asks.

    A handler is called with the run, and its input where it takes that. What it returns is the result, its exception a
    failure, as in `with outlive.run(...)`. Runs of workers that are gone are marked dead.

    >>> registry = Registry("memory:")
    >>> queued = registry.enqueue("greet", {"name": "ada"})
    >>> with Worker({"greet": lambda run, input: "hello " + input["name"]}, registry=registry):
    ...     registry.wait(queued, "30s").result
    'hello ada'
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler] | None = None,
        *,
        slots: int = 1,
        processes: int | None = None,
        start_method: str = "spawn",
        registry: str | Registry | None = None,
        grace: Duration = 10.0,
    ) -> None:
        given = dict(_handlers if handlers is None else handlers)
        self._handlers = {kind: (handler, input_type(handler)) for kind, handler in given.items()}
        if not self._handlers:
            raise Invalid("a worker without handlers does nothing", hint='decorate a function with `@outlive.handler("kind")`')
        if slots < 1:
            raise Invalid(f"a worker with {slots} slots does nothing", hint="give `slots=1` or more")
        self._registry, self._grace = opened(registry), seconds(grace) or 0.0
        self._stopping, self._slots = threading.Event(), slots
        self._held: set[OwnedRun] = set()
        self._threads: list[threading.Thread] = []
        self._processes: Processes | None = None
        if processes is not None:
            from ._processes import Processes, checked

            checked(processes, start_method, self._registry.url, given)
            arguments = (self._registry.url, given, slots, self._grace)
            self._processes = Processes(processes, start_method, arguments, self._grace)

    def start(self) -> Worker:
        """Begins to claim. At exit it is stopped."""
        if self._processes is not None:
            self._processes.start()
            return self
        _lifecycle.before_exit.append(self.stop)
        # Slots may all be busy for hours, while other workers die.
        works = [(self._reap, "outlive-reap"), *((self._work, f"outlive-slot-{n}") for n in range(self._slots))]
        for work, name in works:
            thread = threading.Thread(target=work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def stop(self) -> None:
        """Claims nothing more, and waits for handlers for as long as its grace. Those that still work are then asked to
        stop, by `run.check()` and `run.on_stop`, and what is left after two more seconds is interrupted."""
        self._stopping.set()
        if self._processes is not None:
            self._processes.stop()
        if self.stop in _lifecycle.before_exit:
            _lifecycle.before_exit.remove(self.stop)
        self._join(self._grace)
        for run in list(self._held):
            run.ask_to_stop(Stop("worker_ends"))
        self._join(_LAST_WORD)
        for run in list(self._held):
            log.warning("outlive: run %s is interrupted, and its handler has not returned", run.id)
            run._end_quietly("interrupted", message=WORKER_ENDS)

    def _join(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def pids(self) -> list[int]:
        """The processes that do the work: this one, or those that it has started."""
        return [os.getpid()] if self._processes is None else self._processes.pids()

    def run(self) -> None:
        """Works until `stop`, or TERM, HUP or Ctrl-C, which has its default effect once the worker has stopped. A second
        signal has it at once."""
        asked: list[int] = []
        replaced: dict[int, Any] = {}

        def restore() -> None:
            for number, before in replaced.items():
                signal.signal(number, before)

        def ask(number: int, frame: FrameType | None) -> None:
            # The main thread may hold the lock of an event that would be set here.
            asked.append(number)
            restore()

        if threading.current_thread() is threading.main_thread():
            _lifecycle.handle_signals()
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                if _lifecycle.takes_signal(number):
                    replaced[number] = signal.getsignal(number)
                    signal.signal(number, ask)
        try:
            with self:
                while not asked and not self._stopping.wait(0.2):
                    pass
        finally:
            restore()
        if signal.SIGINT in asked:
            raise KeyboardInterrupt
        if asked:
            _lifecycle.end_by(asked[0])

    def _reap(self) -> None:
        while not self._stopping.wait(_REAP_EVERY):
            try:
                self._registry.reap()
            except Error as error:
                log.warning("outlive: runs of workers that are gone cannot be found: %s", error)

    def _work(self) -> None:
        pause = _SHORTEST
        while not self._stopping.is_set():
            try:
                claimed = self._registry._native.claim(set(self._handlers), 1)
            except Error as error:
                log.warning("outlive: nothing can be claimed: %s", error)
                claimed, pause = [], _LONGEST
            for handle in claimed:
                self._do(handle)
            pause = _SHORTEST if claimed else min(pause * 2, _LONGEST)
            if not claimed:
                self._stopping.wait(pause)

    def _do(self, handle: _outlive.Handle) -> None:
        run = OwnedRun(lambda: (self._registry, handle), strict=False)
        self._held.add(run)
        before = _lifecycle.current_run.set(run)
        error: BaseException | None = None
        result: str | None = None
        try:
            handler, takes = self._handlers[run.kind]
            returned = handler(run) if takes is None else handler(run, read_as(takes, run.input))
            result = None if returned is None else dumped(plain(returned), "result")
        except BaseException as raised:  # A handler's end, whatever it is, is the run's and not the worker's.
            error = raised
        finally:
            _lifecycle.current_run.reset(before)
        if not run.is_over:
            try:
                run._end_with(error, result)
            except BaseException as lost:
                log.warning("outlive: run %s: %s", run.id, lost)
        self._held.discard(run)

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
