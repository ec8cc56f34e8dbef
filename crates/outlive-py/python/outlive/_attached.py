"""A run that another process owns: this one does a part of it, and was handed the owner's epoch.

So it is inside `outlive run -- python x.py`, in a child process, and in the tasks of a framework. Its outcome is recorded
by the owner: the command learns it from the file that `OUTLIVE_OUTCOME` names, or else from the exit status.
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
from ._inputs import BLOCK_VARIABLE, Duration, dumped, seconds
from ._lifecycle import log
from ._runs import Run
from ._views import Stop
from .errors import Error, Invalid, Lost, Stopped, hinted

if TYPE_CHECKING:
    from ._registry import Registry

#: The least time between two looks at the registry, and between two writes of progress, in seconds.
_EVERY = 1.0
#: A look may take this part of the time at most.
_SHARE = 20
#: The longest pause between two writes of progress to a registry that is away, in seconds.
_LONGEST_PAUSE = 30.0
#: How long the exit of the interpreter waits for a thread that is at the registry, in seconds.
_LAST_WAIT = 10.0
#: What names the block of a process whose block has taken the run: no other.
_TAKEN = "[]"

_block_turn = threading.Lock()


class AttachedRun(Run):
    """A run that another process owns. `check` looks at the registry, at most once a second.

    Inside `outlive run -- python x.py` it ends as `succeed`, `fail` or `interrupt` say, and else by the exit status. In
    tasks and children of a program the run is ended by that program, and these methods are refused.
    """

    def __init__(self, registry: Registry, id: str, epoch: int, strict: bool, is_block: bool = False) -> None:
        super().__init__(registry, id, strict)
        self._epoch = epoch
        #: Its end is that of a block of this process, which the run was made by.
        self._is_block = is_block
        self._looked_at = float("-inf")
        self._pause = _EVERY
        self._seen: Stop | None = None
        self._turn = threading.Lock()
        self._over = threading.Event()
        self._unwritten: dict[str, Any] | None = None
        self._posted = threading.Event()
        self._writer: threading.Thread | None = None
        self._writer_turn = threading.Lock()
        self._look()
        if self._seen is not None and self._seen.kind == "lost":
            raise Lost(f"run `{id}`: this attempt no longer owns it")
        if is_block:
            _lifecycle.opened(self)

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    @property
    def epoch(self) -> int:
        return self._epoch

    def _look(self) -> None:
        began = time.monotonic()
        try:
            is_current, cancel, record = self.registry._native.claimed(self.id, self.epoch)
        except Error as error:
            # A later attempt that does not know its checkpoint would do again what is done, and overwrite it with less.
            knows_checkpoint = self._record or os.environ.get(_outlive.ATTEMPT_VARIABLE) == "1"
            if self._strict or not error.passing or not knows_checkpoint:
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
        if data:
            dumped(data, "progress")
        self._unwritten = {key: value for key, value in said.items() if value is not None}
        if flush or os.getpid() != self._pid:
            # In a forked child that is refused.
            self._flush()
        elif not self._over.is_set():
            self._post()

    def _post(self) -> None:
        """Has a thread write the progress, which the work does not wait for."""
        if self._writer is None:
            with self._writer_turn:
                if self._writer is None:
                    self._writer = _until_exit(self._write_posted, self._end_writer, "outlive-progress")
        self._posted.set()

    def _write_posted(self) -> None:
        failed = 0
        while True:
            self._posted.wait()
            self._posted.clear()
            if self._over.is_set():
                return
            began = time.monotonic()
            unwritten = self._unwritten
            failed = 0 if unwritten is None or self._write(unwritten) else failed + 1
            if failed:
                # What is newer by now is written instead.
                self._unwritten = self._unwritten or unwritten
                self._posted.set()
            took = time.monotonic() - began
            self._over.wait(min(max(_EVERY * 2**failed, _SHARE * took), _LONGEST_PAUSE))

    def _end_writer(self) -> None:
        """At exit: writes what was said last. A block has done so before."""
        self._over.set()
        self._posted.set()
        if self._writer is not None:
            self._writer.join(_LAST_WAIT)
        _outlive.limit_calls(True)
        try:
            self._flush()
        except (Error, Stopped) as error:
            log.warning("outlive: not on record: %s", error)
        finally:
            _outlive.limit_calls(False)

    def _flush(self) -> None:
        unwritten = self._unwritten
        if unwritten is not None:
            self._report(dumped({"progress": unwritten}, "progress"))
            self._note_written(unwritten)

    def _write(self, unwritten: dict[str, Any]) -> bool:
        """Writes progress from a thread, to which nothing is raised."""
        try:
            self.registry._native.report(self.id, self.epoch, dumped({"progress": unwritten}, "progress"))
        except Error as error:
            log.warning("outlive: not on record: %s", error)
            return not error.passing
        except Stopped:
            # The next look says so to the work.
            return True
        self._note_written(unwritten)
        return True

    def _note_written(self, written: dict[str, Any]) -> None:
        if self._unwritten is written:
            self._unwritten = None

    def _report(self, report: str, keeps_checkpoint: bool = False) -> bool:
        try:
            self.registry._native.report(self.id, self.epoch, report)
            return True
        except Error as error:
            if self._strict or not error.passing:
                raise
            log.warning("outlive: not on record: %s", error)
            return False

    def succeed(self) -> str:
        return self._declare(Ending("succeeded"))

    def fail(self, error: BaseException | str, message: str | None = None) -> str:
        return self._declare(self._failure(error, message))

    def interrupt(self, reason: str) -> str:
        return self._declare(Ending("interrupted", message=reason))

    def suspend(self, reason: str) -> str:
        hint = "`run.interrupt(reason)` ends the attempt, and `outlive resume` continues it"
        raise Invalid(f"run `{self.id}` is owned by another process, and cannot be suspended from this one", hint=hint)

    def _declare(self, ending: Ending) -> str:
        """Has the owner record an outcome when this process has ended."""
        if self._over.is_set():
            raise Invalid(f"run `{self.id}` was ended here already", hint="a run is ended once; start another, or resume it")
        path = os.environ.get(_outlive.OUTCOME_VARIABLE)
        if not path or inside() != (self.id, self.epoch):
            hint = "raise the exception, or tell the process that owns the run"
            raise Invalid(f"run `{self.id}` is owned by another process, which records its outcome", hint=hint)
        try:
            self._flush()
            _declare_in(path, ending)
        except OSError as error:
            hint = "end with the exit status instead: `sys.exit(1)`, or raise the exception"
            raise Error(f"the outcome of run `{self.id}` cannot be declared: {error}", code="unavailable", hint=hint) from error
        finally:
            self._close()
        return "later"

    def _end(self, ending: Ending) -> str:
        """The end of a block. Where the run was made by the block, it ends so; else by the exit status of this process."""
        if os.getpid() != self._pid:
            return "later"
        if self._is_block and os.environ.get(_outlive.OUTCOME_VARIABLE):
            return self._declare(ending)
        try:
            self._flush()
        finally:
            self._close()
        return "later"

    def _close(self) -> None:
        self._over.set()
        self._posted.set()
        _lifecycle.closed(self)

    def on_stop(self, callback: Callable[[Stop], object]) -> None:
        def watch() -> None:
            while not self._over.wait(_EVERY / 4) and not over.is_set():
                stop = self.stop_requested
                if stop is not None:
                    callback(stop)
                    return

        over = threading.Event()
        _until_exit(watch, over.set, "outlive-on-stop")

    def wait_for_stop(self, timeout: Duration | None = None) -> Stop | None:
        limit = seconds(timeout)
        deadline = float("inf") if limit is None else time.monotonic() + limit
        while (stop := self.stop_requested) is None and (left := deadline - time.monotonic()) > 0:
            if self._over.wait(min(left, _EVERY / 4)):
                return None
        return stop


def _until_exit(work: Callable[[], None], end: Callable[[], None], name: str) -> threading.Thread:
    """Starts a thread that calls the library, which must not outlive the interpreter."""

    def worked() -> None:
        try:
            work()
        finally:
            if ended in _lifecycle.before_exit and not has_ended.is_set():
                _lifecycle.before_exit.remove(ended)

    def ended() -> None:
        has_ended.set()
        end()
        thread.join(_LAST_WAIT)

    has_ended = threading.Event()
    thread = threading.Thread(target=worked, name=name, daemon=True)
    _lifecycle.before_exit.append(ended)
    thread.start()
    return thread


def _declare_in(path: str, ending: Ending) -> None:
    said: dict[str, Any] = {"how": ending.how}
    if ending.how == "failed":
        said |= {"error_type": ending.error_type, "error_message": ending.message}
    elif ending.how == "interrupted":
        said |= {"signal": ending.signal, "reason": ending.message}
    elif ending.how != "succeeded":
        # The owner knows of a cancellation, and of a run that was lost.
        return
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    written = f"{path}.{os.getpid()}"
    with open(written, "w", encoding="utf-8") as file:
        json.dump(said, file)
    os.replace(written, path)


def takes_block(name: str | None, kind: str) -> bool | None:
    """Whether the run that this process was resumed for is that of a block of this name and kind; none where every block
    of the process belongs to the run. A block takes the run once: the others of this process and of its children make
    runs of their own, as when the program was first started.
    """
    with _block_turn:
        named = os.environ.get(BLOCK_VARIABLE)
        if not named:
            return None
        if named != json.dumps([name, kind]):
            return False
        os.environ[BLOCK_VARIABLE] = _TAKEN
        return True


def inside() -> tuple[str, int] | None:
    """The run that this process belongs to by its environment, and the epoch of the claim."""
    with hinted("start the program by `outlive run`, or unset OUTLIVE_RUN_ID and OUTLIVE_EPOCH"):
        return _outlive.inside()
