"""The ends that no `with` block sees: exit of the interpreter, uncaught exceptions, signals, forks.

Runs that are open are known here, so that each of them is ended with the reason for it. A run whose process is killed is
not: the registry finds that its owner is gone.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from . import _outlive

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from ._runs import Run


class _Log:
    """The logger `outlive`. The module `logging` is imported with the first message: it takes longer than all of this."""

    def warning(self, text: str, *values: object) -> None:
        import logging

        logging.getLogger("outlive").warning(text, *values)

    def debug(self, text: str, *values: object) -> None:
        import logging

        logging.getLogger("outlive").debug(text, *values)


log = _Log()

#: The run whose block is being executed here.
current_run: ContextVar[Run | None] = ContextVar("outlive_run", default=None)
#: The id of the step whose work is being done here.
current_step: ContextVar[str | None] = ContextVar("outlive_step", default=None)

#: What frameworks say of the run that a task of theirs belongs to.
fallbacks: list[Callable[[], Run | None]] = []

#: What is stopped before runs are ended at exit: threads that call the library must not outlive the interpreter.
before_exit: list[Callable[[], None]] = []

_open: dict[int, Run] = {}
_uncaught: BaseException | None = None
_is_hooked = False


def opened(run: Run) -> None:
    """Notes a run that is to be ended with the process."""
    global _is_hooked
    _open[id(run)] = run
    if not _is_hooked:
        _is_hooked = True
        _chain_excepthook()


def closed(run: Run) -> None:
    """Notes that a run has ended."""
    _open.pop(id(run), None)


def only() -> Run | None:
    """The run that is open in this process, if it is the only one."""
    runs = list(_open.values())
    return runs[0] if len(runs) == 1 else None


def handle_signals() -> None:
    """Has TERM and HUP recorded, where their effect is the default one. Handlers of the program are left alone."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    # A second signal has its default effect at once.
    signal.signal(number, signal.SIG_DFL)
    _outlive.begin_exit()
    for run in list(_open.values()):
        run._end_quietly("interrupted", message=f"signal {number}", signal=number)
    os.kill(os.getpid(), number)
    # The first process of a container is not ended by a signal that it does not handle. Its runs are over.
    os._exit(128 + number)


def end_by(number: int) -> None:
    """Ends the process by a signal whose handler was replaced for a while."""
    _on_signal(number, None)


def takes_signal(number: int) -> bool:
    """Whether the effect of a signal is the default one, or what is recorded before it."""
    return signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, _on_signal)


def _chain_excepthook() -> None:
    before = sys.excepthook

    def noted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        global _uncaught
        _uncaught = error
        return before(kind, error, trace)

    sys.excepthook = noted


def _at_exit() -> None:
    for stop in list(before_exit):
        stop()
    _outlive.begin_exit()
    for run in list(_open.values()):
        if _uncaught is not None:
            run._end_with(_uncaught)
        else:
            run._end_quietly("interrupted", message="the process ended without saying how it came out")
    from ._registry import close_all

    close_all()
    # A thread that comes back from the library must find an interpreter.
    _outlive.wait_for_calls()


def _after_fork() -> None:
    _outlive.after_fork_in_child()
    # What is open is the parent's: this process neither ends it nor reports for it.
    _open.clear()
    before_exit.clear()
    current_run.set(None)
    current_step.set(None)


atexit.register(_at_exit)
os.register_at_fork(
    before=_outlive.before_fork, after_in_parent=_outlive.after_fork_in_parent, after_in_child=_after_fork
)
