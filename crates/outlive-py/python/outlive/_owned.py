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
from .errors import Error, ForkedRun, Invalid, Lost

if TYPE_CHECKING:
    from ._registry import Registry

_LONGEST_PAUSE = 30.0

#: How many reports wait for a registry that is away, at most.
_MOST_UNSENT = 1_000
_NEEDS_REGISTRY = 'with `resume=True` the work begins only when the registry says where; `resume="auto"` begins without'

#: Opens the registry and makes the run.
Make = Callable[[], "tuple[Registry, _outlive.Handle]"]


class OwnedRun(Run):
    """A run that this process owns. Without `strict` it continues while the registry is away, and is recorded later."""

    def __init__(self, make: Make, strict: bool, needs_registry: bool = False) -> None:
        super().__init__(None, "", strict)
        self._make = make
        self._handle: _outlive.Handle | None = None
        self._over = threading.Event()
        self._turn = threading.RLock()
        #: Reports that are to be sent with the next, and the checkpoint among them.
        self._unsent: list[str] = []
        self._unsent_turn = threading.RLock()
        self._unsaved: str | None = None
        self._asked: Stop | None = None
        self._last: dict[str, Any] = {}
        try:
            self._hold(*make())
        except Error as error:
            may_begin = error.passing or error.code in ("denied", "unavailable", "forbidden", "unauthorised")
            if needs_registry and may_begin and not strict:
                # Begun without its checkpoint it would do again what is done, and overwrite the checkpoint with less.
                error.add_hint(_NEEDS_REGISTRY if error.hint is None else f"{error.hint}; {_NEEDS_REGISTRY}")
            if strict or needs_registry or not may_begin:
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
                self._send_unsent(self._held())
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
        handle = self._handle
        stop = None if handle is None else handle.stop()
        return self._asked if stop is None else Stop(*stop)

    def ask_to_stop(self, stop: Stop) -> None:
        """Asks the work to stop for a reason of this process's own."""
        self._asked = stop
        if self._handle is not None:
            self._handle.announce()

    def check(self) -> None:
        handle = self._handle
        stop = None if handle is None else handle.stop()
        if stop is not None:
            self._raise(Stop(*stop))
        if self._asked is not None:
            self._raise(self._asked)

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
                # A checkpoint that is not sent yet is replaced by this one.
                self._send_unsent(handle, keeps_checkpoint)
                handle.report(report)
                return True
            reason: Error | str = "the registry has not been reached yet"
        except ForkedRun:
            raise
        except Error as error:
            if self._strict or not error.passing:
                raise
            reason = error
        self._keep(report, keeps_checkpoint)
        log.warning("outlive: not recorded yet: %s", reason)
        return False

    def _keep(self, report: str, keeps_checkpoint: bool) -> None:
        """Keeps a report until the registry can be reached. Of checkpoints the last is kept, and of progress none: the
        library has the last."""
        with self._unsent_turn:
            if keeps_checkpoint:
                self._unsaved = report
            elif report == "{}":
                pass
            elif len(self._unsent) < _MOST_UNSENT:
                self._unsent.append(report)
            else:
                log.warning("outlive: more than %d reports wait, so it is not recorded: %s", _MOST_UNSENT, report)

    def _send_unsent(self, handle: _outlive.Handle, is_replaced: bool = False) -> None:
        """Sends what is kept, in its order. What fails stays kept."""
        if not self._unsent and self._unsaved is None:
            return
        with self._unsent_turn:
            while self._unsent:
                try:
                    handle.report(self._unsent[0])
                except Error as error:
                    if error.passing:
                        raise
                    log.warning("outlive: never recorded: %s: %s", self._unsent[0], error)
                del self._unsent[0]
            if self._unsaved is not None and not is_replaced:
                handle.report(self._unsaved)
            self._unsaved = None

    def _end(self, ending: Ending) -> str:
        if os.getpid() != self._pid:
            raise ForkedRun(f"run `{self.id}` is of process {self._pid}, and this process is a fork of that one")
        if self._handle is None:
            self._try_last()
        with self._turn:
            handle = self._held()
            self._send_before_end(handle)
            try:
                how, error_type, message, signal, code, result = ending
                return handle.end(how, error_type, message, signal, code, self._unsaved, result)
            finally:
                if handle.is_ended:
                    self._close()

    def _send_before_end(self, handle: _outlive.Handle) -> None:
        """The checkpoint is written with the end; what else is kept goes before it, where the registry can be reached."""
        if self._unsent:
            unsaved, self._unsaved = self._unsaved, None
            _outlive.limit_calls(True)
            try:
                self._send_unsent(handle)
            except (Error, Lost) as error:
                log.warning("outlive: %d reports of run %s are not on record: %s", len(self._unsent), self.id, error)
            finally:
                _outlive.limit_calls(False)
                self._unsaved = unsaved

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
