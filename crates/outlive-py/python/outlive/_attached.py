"""A run that another process owns: this one does a part of it, and was handed the owner's epoch.

So it is inside `outlive run -- python x.py`, in a child process, and in the tasks of a framework. Its outcome is recorded
by the owner.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _lifecycle, _outlive
from ._endings import Ending
from ._inputs import Duration, dumped, seconds
from ._lifecycle import log
from ._runs import Run
from ._views import Stop
from .errors import Error, Invalid, Lost

if TYPE_CHECKING:
    from ._registry import Registry

#: The least time between two looks at the registry, and between two writes of progress, in seconds.
_EVERY = 1.0
#: A look may take this part of the time at most.
_SHARE = 20
#: How long the exit of the interpreter waits for a look at the registry, in seconds.
_LAST_WAIT = 10.0


class AttachedRun(Run):
    """A run that another process owns. `check` looks at the registry, at most once a second."""

    def __init__(self, registry: Registry, id: str, epoch: int, strict: bool) -> None:
        super().__init__(registry, id, strict)
        self._epoch = epoch
        self._looked_at = float("-inf")
        self._pause = _EVERY
        self._seen: Stop | None = None
        self._turn = threading.Lock()
        self._unwritten: dict[str, Any] | None = None
        self._written_at = float("-inf")
        self._look()
        if self._seen is not None and self._seen.kind == "lost":
            raise Lost(f"run `{id}`: this attempt no longer owns it")

    @property
    def epoch(self) -> int:
        return self._epoch

    def _look(self) -> None:
        began = time.monotonic()
        try:
            is_current, cancel, record = self.registry._native.claimed(self.id, self.epoch)
        except Error as error:
            if self._strict or not error.passing:
                raise
            log.warning("outlive: run %s cannot be looked at: %s", self.id, error)
        else:
            if not self._record:
                self._record = json.loads(record)
            if not is_current:
                self._seen = Stop("lost")
            elif cancel is not None:
                self._seen = Stop("cancelled", *cancel)
        self._looked_at = time.monotonic()
        self._pause = max(_EVERY, _SHARE * (self._looked_at - began))

    @property
    def stop_requested(self) -> Stop | None:
        if self._seen is None and time.monotonic() - self._looked_at >= self._pause and self._turn.acquire(False):
            try:
                self._look()
            finally:
                self._turn.release()
        return self._seen

    def verify(self) -> None:
        """Looks at the registry now, and raises where the work should stop. Call it before an effect that must not
        happen twice."""
        with self._turn:
            self._look()
        self.check()

    def progress(
        self,
        done: int | None = None,
        total: int | None = None,
        message: str | None = None,
        *,
        flush: bool = False,
        **data: Any,
    ) -> None:
        if done is not None:
            self._counts = (done, total)
        said = {"done": done, "total": total, "message": message, "data": data or None}
        self._unwritten = {key: value for key, value in said.items() if value is not None}
        if flush or time.monotonic() - self._written_at >= _EVERY:
            self._flush()

    def _flush(self) -> None:
        unwritten, self._unwritten = self._unwritten, None
        if unwritten is not None:
            self._written_at = time.monotonic()
            self._report(dumped({"progress": unwritten}, "progress"))

    def _report(self, report: str, keeps_checkpoint: bool = False) -> bool:
        try:
            self.registry._native.report(self.id, self.epoch, report)
            return True
        except Error as error:
            if self._strict or not error.passing:
                raise
            log.warning("outlive: not on record: %s", error)
            return False

    def _end(self, ending: Ending) -> str:
        """The owner records how it ended, by the exit status of this process."""
        if os.getpid() == self._pid:
            self._flush()
        return "later"

    def fail(self, error: BaseException | str, message: str | None = None) -> str:
        """Refused: the owner records the outcome by the exit status of this process."""
        raise Invalid(
            f"run `{self.id}` is owned by another process, which records its outcome",
            hint="raise the exception, or end with `sys.exit(1)`",
        )

    def suspend(self, reason: str) -> str:
        raise Invalid(f"run `{self.id}` is owned by another process", hint="`outlive suspend` is for its owner")

    def on_stop(self, callback: Callable[[Stop], object]) -> None:
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_EVERY / 4):
                stop = self.stop_requested
                if stop is not None:
                    callback(stop)
                    return

        def end() -> None:
            # A thread that calls the library must not outlive the interpreter.
            over.set()
            thread.join(_LAST_WAIT)

        thread = threading.Thread(target=watch, name="outlive-on-stop", daemon=True)
        _lifecycle.before_exit.append(end)
        thread.start()

    def wait_for_stop(self, timeout: Duration | None = None) -> Stop | None:
        limit = seconds(timeout)
        deadline = float("inf") if limit is None else time.monotonic() + limit
        while (stop := self.stop_requested) is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _EVERY / 4))
        return stop


def inside() -> tuple[str, int] | None:
    """The run that this process belongs to by its environment, and the epoch of the claim."""
    return _outlive.inside()
