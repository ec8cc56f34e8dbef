"""A run that this process owns: the library beats for it until it is ended."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _lifecycle, _outlive
from ._endings import Ending
from ._inputs import Duration, dumped, seconds
from ._lifecycle import log
from ._runs import Run, wait_readable
from ._views import Stop
from .errors import Error, ForkedRun, Invalid

if TYPE_CHECKING:
    from ._registry import Registry

_LONGEST_PAUSE = 30.0

#: Opens the registry and makes the run.
Make = Callable[[], "tuple[Registry, _outlive.Handle]"]


class OwnedRun(Run):
    """A run that this process owns. Without `strict` it continues while the registry is away, and is recorded later."""

    def __init__(self, make: Make, strict: bool) -> None:
        super().__init__(None, "", strict)
        self._make = make
        self._handle: _outlive.Handle | None = None
        self._over = threading.Event()
        self._turn = threading.RLock()
        self._unsaved: str | None = None
        self._last: dict[str, Any] = {}
        try:
            self._hold(*make())
        except Error as error:
            if strict or not (error.passing or error.code in ("denied", "unavailable", "forbidden", "unauthorised")):
                raise
            self._tell(f"the run is not recorded yet, and continues: {error}")
            threading.Thread(target=self._keep_trying, name="outlive-start", daemon=True).start()
        _lifecycle.opened(self)

    def _hold(self, registry: Registry, handle: _outlive.Handle) -> None:
        self._registry, self._id = registry, handle.id
        kept = self._record.get("checkpoint")
        self._record = json.loads(handle.record())
        if kept is not None:
            self._record["checkpoint"] = kept
        self._handle = handle

    def _keep_trying(self) -> None:
        pause = 1.0
        while not self._over.wait(pause) and os.getpid() == self._pid:
            pause = min(pause * 2, _LONGEST_PAUSE)
            if self._try_once():
                return

    def _try_once(self) -> bool:
        with self._turn:
            if self._handle is not None or self._over.is_set():
                return True
            _outlive.limit_calls(True)
            try:
                self._hold(*self._make())
                if self._last:
                    self.progress(**self._last)
                self._flush_unsaved()
            except Error as error:
                log.debug("outlive: the run is not recorded yet: %s", error)
            finally:
                _outlive.limit_calls(False)
            return self._handle is not None

    def _tell(self, text: str) -> None:
        log.warning("outlive: %s", text)
        warnings.warn(f"outlive: {text}", RuntimeWarning, stacklevel=5)

    @property
    def fence(self) -> tuple[str, int]:
        """The claim, for whatever the work writes elsewhere: the worker and its epoch."""
        return self._held().fence

    def _held(self) -> _outlive.Handle:
        if self._handle is None:
            raise Error("the registry has not been reached yet", code="unavailable")
        return self._handle

    @property
    def stop_requested(self) -> Stop | None:
        if self._handle is None:
            return None
        stop = self._handle.stop()
        return None if stop is None else Stop(*stop)

    def check(self) -> None:
        handle = self._handle
        if handle is not None:
            stop = handle.stop()
            if stop is not None:
                self._raise(Stop(*stop))

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
        handle = self._handle
        if handle is None:
            self._last = {"done": done, "total": total, "message": message, **data}
            return
        handle.progress(done, total, message, dumped(data, "progress") if data else None)
        if flush:
            self._report("{}")

    def _report(self, report: str, keeps_checkpoint: bool = False) -> bool:
        if self._over.is_set():
            raise Invalid(f"run `{self.id}` has ended here", hint="save and report inside the `with` block")
        handle = self._handle
        try:
            if handle is not None:
                handle.report(report)
                self._unsaved = None if keeps_checkpoint else self._unsaved
                return True
            reason: Error | str = "the registry has not been reached yet"
        except ForkedRun:
            raise
        except Error as error:
            if self._strict or not error.passing:
                raise
            reason = error
        if keeps_checkpoint:
            self._unsaved = report
        log.warning("outlive: not recorded yet: %s", reason)
        return False

    def _flush_unsaved(self) -> None:
        if self._unsaved is not None and self._handle is not None:
            self._handle.report(self._unsaved)
            self._unsaved = None

    def _end(self, ending: Ending) -> str:
        if os.getpid() != self._pid:
            raise ForkedRun(f"run `{self.id}` is of process {self._pid}, and this process is a fork of that one")
        if self._handle is None:
            self._try_last()
        with self._turn:
            handle = self._held()
            try:
                how, error_type, message, signal, code, result = ending
                return handle.end(how, error_type, message, signal, code, self._unsaved, result)
            finally:
                if handle.is_ended:
                    self._close()

    def _try_last(self) -> None:
        """Makes a run that ends before its registry was reached, within seconds."""
        is_trying = not self._turn.acquire(blocking=False)
        if not is_trying:
            self._turn.release()
        with self._turn:
            # Where another thread was at it, that knows as much by now.
            if self._handle is None and (is_trying or not self._try_once()):
                self._close()
                raise Error("the registry could not be reached, so the run was never recorded", code="unavailable")

    def suspend(self, reason: str) -> str:
        try:
            return self._held().suspend(reason)
        finally:
            if self._held().is_ended:
                self._close()

    def _close(self) -> None:
        self._over.set()
        _lifecycle.closed(self)

    @property
    def is_over(self) -> bool:
        """Whether it was ended here."""
        return self._over.is_set()

    def wait_for_stop(self, timeout: Duration | None = None) -> Stop | None:
        limit = seconds(timeout)
        deadline = None if limit is None else time.monotonic() + limit
        while self._handle is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if self._over.wait(0.5 if left is None else min(left, 0.5)) or left == 0.0:
                return None
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        wait_readable(self._handle.stop_descriptor(), left)
        return self.stop_requested
