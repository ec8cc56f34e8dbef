"""A run, as the code sees it that does the work."""

from __future__ import annotations

import json
import math
import os
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from . import _outlive
from ._endings import Ending, ending_of
from ._inputs import BLOCK_VARIABLE, Duration, dumped
from ._lifecycle import log
from ._views import RunRef, RunView, Stop
from .errors import Cancelled, Error, ForkedRun, Invalid, LeaseOver, Lost, Refused, Stopped, TimedOut, WorkerEnds

if TYPE_CHECKING:
    from ._registry import Registry
    from ._steps import Step

_STOPS: dict[str, type[Stopped]] = {
    "lost": Lost,
    "timed_out": TimedOut,
    "lease_over": LeaseOver,
    "worker_ends": WorkerEnds,
}


class Run(ABC):
    """A run that this process does, or a part of: what `with outlive.run(...)` gives.

    All methods may be called from any thread. A run cannot be pickled; `run.ref` can.
    """

    def __init__(self, registry: Registry | None, id: str, strict: bool) -> None:
        self._registry = registry
        self._id = id
        self._strict = strict
        self._pid = os.getpid()
        self._record: dict[str, Any] = {}
        self._names: dict[str, int] = {}
        #: How much is done, and of how much, as it was said last.
        self._counts: tuple[int | None, int | None] = (None, None)

    @property
    def id(self) -> str:
        """The id of the run; empty while the registry has not been reached."""
        return self._id

    @property
    def name(self) -> str | None:
        """What people call it."""
        name: str | None = self._record.get("spec", {}).get("name")
        return name

    @property
    def kind(self) -> str:
        """What sort of work it is."""
        return str(self._record.get("spec", {}).get("kind", "python"))

    @property
    def labels(self) -> dict[str, str]:
        """The labels that it was made with."""
        return dict(self._record.get("spec", {}).get("labels", {}))

    @property
    def attempt(self) -> int:
        """The number of this attempt; the first is 1."""
        return int(self._record.get("attempt", 1))

    @property
    def epoch(self) -> int:
        """The fencing number of this attempt's claim."""
        return int(self._record.get("epoch", 0))

    @property
    def input(self) -> Any:
        """What it was enqueued with; none where it was enqueued with nothing."""
        return self._record.get("spec", {}).get("input")

    @property
    def traceparent(self) -> str | None:
        """The span of a distributed trace that it was made in, as W3C Trace Context writes it; none where it has none."""
        traceparent: str | None = self._record.get("spec", {}).get("traceparent")
        return traceparent

    @property
    def checkpoint(self) -> Any:
        """What was saved last, by this attempt or an earlier one; none at first."""
        return self._record.get("checkpoint")

    @property
    def registry(self) -> Registry:
        """The registry that it is recorded in."""
        if self._registry is None:
            raise Error("the registry has not been reached yet", code="unavailable")
        return self._registry

    @property
    def ref(self) -> RunRef:
        """A reference to this attempt for other processes: `outlive.attach(ref)`."""
        url = self.registry.url
        return RunRef(url if url == str(self.registry) else None, self.id, self.epoch)

    def save(self, value: Any) -> bool:
        """Keeps a checkpoint, for the next attempt. Any JSON, up to 1 MiB; durable when this returns true.

        False says that the registry is away, and `strict` is not set: the checkpoint is kept in memory and written with
        the next call that reaches it.
        """
        self._record["checkpoint"] = json.loads(text := dumped(value, "checkpoint"))
        return self._report(f'{{"checkpoint":[{text}]}}', keeps_checkpoint=True)

    def artifact(self, uri: str) -> bool:
        """Records something that the run has made. The claim is checked: call it before pointing at the artifact."""
        return self._report(json.dumps({"artifact": str(uri)}))

    def manifest(self, ref: str) -> bool:
        """Records the manifest that names the winners. The claim is checked."""
        return self._report(json.dumps({"manifest_ref": str(ref)}))

    def check(self) -> None:
        """Raises `Cancelled`, `Lost`, `TimedOut` or `LeaseOver` where the work should stop. Cheap: call it in loops."""
        stop = self.stop_requested
        if stop is not None:
            self._raise(stop)

    def _raise(self, stop: Stop) -> NoReturn:
        if os.getpid() != self._pid:
            raise ForkedRun(f"run `{self.id}` is of process {self._pid}, and this process is a fork of that one")
        raise self._stopped_by(stop)

    def _stopped_by(self, stop: Stop) -> Stopped:
        if stop.kind == "cancelled":
            return Cancelled(stop.by, stop.reason)
        return _STOPS.get(stop.kind, Stopped)(f"run `{self.id}`: {stop.kind.replace('_', ' ')}")

    @property
    @abstractmethod
    def stop_requested(self) -> Stop | None:
        """Why the work should stop; none while it should not."""

    @abstractmethod
    def progress(
        self,
        done: int | None = None,
        total: int | None = None,
        message: str | None = None,
        *,
        flush: bool = False,
        **data: Any,
    ) -> None:
        """Says how far the work is. Takes microseconds; the last value is written, at most once a second."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether its end was said here."""

    @abstractmethod
    def _report(self, report: str, keeps_checkpoint: bool = False) -> bool:
        ...

    @abstractmethod
    def _end(self, ending: Ending) -> str:
        ...

    def succeed(self) -> str:
        """The work did what it was to do. `now` where that is on record, `later` where it is spooled."""
        return self._end(Ending("succeeded"))

    def fail(self, error: BaseException | str, message: str | None = None) -> str:
        """The work failed, with an exception or an error type and a message."""
        return self._end(self._failure(error, message))

    def _failure(self, error: BaseException | str, message: str | None) -> Ending:
        if isinstance(error, BaseException):
            return ending_of(error, self.stop_requested)._replace(how="failed")
        return Ending("failed", error, message or error)

    def interrupt(self, reason: str) -> str:
        """The work was asked to stop, by a signal or a shutdown. It can be resumed."""
        return self._end(Ending("interrupted", message=reason))

    @abstractmethod
    def suspend(self, reason: str) -> str:
        """Lets go of the run until somebody wakes it, for what `reason` says."""

    def on_stop(self, callback: Callable[[Stop], object]) -> None:
        """Has `callback` called once, on a thread of its own, as soon as there is a reason to stop."""

        def wait() -> None:
            stop = self.wait_for_stop()
            if stop is not None:
                callback(stop)

        threading.Thread(target=wait, name="outlive-on-stop", daemon=True).start()

    @abstractmethod
    def wait_for_stop(self, timeout: Duration | None = None) -> Stop | None:
        """Waits for a reason to stop, until the run ends here or for as long as `timeout`."""

    def step(self, name: str, *inputs: Any) -> Step:
        """A part of the work that is done once, however often the run is resumed; see `Step`."""
        from ._steps import Step

        return Step(self, name, inputs)

    def child_env(self) -> dict[str, str]:
        """The environment with which a child process belongs to this run: `outlive.current()` works there."""
        names = (_outlive.RUN_VARIABLE, _outlive.EPOCH_VARIABLE, _outlive.ATTEMPT_VARIABLE, _outlive.REGISTRY_VARIABLE)
        env = dict(zip(names, (self.id, str(self.epoch), str(self.attempt), self.registry.url), strict=True))
        # Every block of the child belongs to the run, also where this process was resumed with one of its own.
        env[BLOCK_VARIABLE] = ""
        return env | ({_outlive.TRACE_VARIABLE: self.traceparent} if self.traceparent else {})

    def view(self) -> RunView:
        """The run as others see it now."""
        return self.registry.find(self.id)

    def _end_with(self, error: BaseException | None, result: str | None = None) -> None:
        """Records how a block ended. What fails here never hides how the block ended."""
        ending = ending_of(error, self.stop_requested)._replace(result=result)
        try:
            if ending.how != "lost":
                self._end(ending)
            return
        except Lost:
            if error is None:
                raise
        except Refused as refused:
            # It asked nobody to be cancelled, or somebody has recorded its end.
            log.debug("outlive: run %s was not ended as %s: %s", self.id, ending.how, refused)
        except Error as failed:
            if self._strict and error is None:
                raise
            log.warning("outlive: the end of run %s is not on record: %s", self.id, failed)

    def _end_quietly(self, how: str, message: str = "", signal: int | None = None) -> None:
        try:
            self._end(Ending(how, message=message, signal=signal))
        except (Error, Stopped) as error:
            log.warning("outlive: the end of run %s is not on record: %s", self.id, error)

    def __reduce__(self) -> NoReturn:
        raise Invalid("a run cannot be pickled", hint="hand `run.ref` over and call `outlive.attach(ref)` there")

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<{type(self).__name__}{name} {self.id or 'not recorded yet'} attempt {self.attempt}>"

    def _repr_html_(self) -> str:
        return self.view()._repr_html_()


def finish(ended: Run, error: BaseException | None) -> None:
    """Records how a block ended, unless its code has said so itself. In a forked child nothing is recorded."""
    if os.getpid() == ended._pid and not ended.is_over:
        ended._end_with(error)


def wait_readable(descriptor: int, timeout: float | None) -> bool:
    """Waits without the interpreter's lock, and lets signals of the program be handled."""
    # `select` takes no descriptor from 1024 on.
    polled = select.poll()
    polled.register(descriptor, select.POLLIN)
    return bool(polled.poll(None if timeout is None else math.ceil(timeout * 1000)))
