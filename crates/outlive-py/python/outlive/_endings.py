"""How a block ended, and what is recorded of it."""

from __future__ import annotations

import os
import signal as signals
import sys
from typing import NamedTuple

from ._views import Stop
from .errors import Cancelled, LeaseOver, Lost, Stopped, TimedOut, WorkerEnds

_LONGEST = 3_000
#: Why a run is interrupted that its worker did not wait for any longer.
WORKER_ENDS = "its worker was asked to end"


class Ending(NamedTuple):
    """What is recorded of the end of a run."""

    #: `succeeded`, `failed`, `cancelled`, `interrupted`; or `lost`, of which nothing is recorded.
    how: str
    error_type: str = ""
    message: str = ""
    signal: int | None = None
    code: int | None = None
    #: What it returned, as JSON.
    result: str | None = None


def ending_of(error: BaseException | None, stop: Stop | None) -> Ending:
    """What is recorded of a block that ended with this exception, or with none.

    >>> ending_of(None, None).how, ending_of(SystemExit(3), None).code, ending_of(KeyboardInterrupt(), None).signal
    ('succeeded', 3, 2)
    >>> ending_of(ValueError("x"), None)[:3]
    ('failed', 'ValueError', 'x')
    """
    if error is None:
        return Ending("succeeded")
    if isinstance(error, Stopped):
        return _stopped(error)
    if isinstance(error, KeyboardInterrupt):
        return Ending("interrupted", message="KeyboardInterrupt", signal=int(signals.SIGINT))
    if isinstance(error, SystemExit):
        return _exited(error)
    if isinstance(error, GeneratorExit):
        return Ending("interrupted", message="the generator that held the run was closed")
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and isinstance(error, asyncio.CancelledError):
        if stop is not None and stop.kind == "cancelled":
            return Ending("cancelled")
        return Ending("interrupted", message="its asyncio task was cancelled")
    return Ending("failed", _name(error), _message(error))


def _stopped(error: Stopped) -> Ending:
    if isinstance(error, Cancelled):
        return Ending("cancelled")
    if isinstance(error, TimedOut):
        return Ending("failed", "timeout", "it ran for longer than its timeout")
    if isinstance(error, LeaseOver):
        return Ending("interrupted", message="its registry could not be reached")
    if isinstance(error, WorkerEnds):
        return Ending("interrupted", message=WORKER_ENDS)
    return Ending("lost" if isinstance(error, Lost) else "interrupted", message=str(error))


def _exited(error: SystemExit) -> Ending:
    if error.code is None or error.code == 0:
        return Ending("succeeded", code=0)
    if isinstance(error.code, int):
        return Ending("failed", "exit", f"exit status {error.code}", code=error.code & 0xFF)
    return Ending("failed", "exit", str(error.code)[:_LONGEST], code=1)


def _name(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name[:200]


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = f"<{type(error).__name__} that cannot be shown>"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return text[:_LONGEST]
    code = trace.tb_frame.f_code
    where = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} in {code.co_name}"
    return f"{text[:_LONGEST]} ({where})" if text else where
