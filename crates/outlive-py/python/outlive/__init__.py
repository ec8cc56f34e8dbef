"""outlive: every run outlives its process.

>>> import outlive
>>> with outlive.run("train", registry="memory:") as run:
...     for epoch in range(run.checkpoint or 0, 2):
...         saved = run.save(epoch + 1)
>>> run.checkpoint
2
"""

from __future__ import annotations

from . import errors
from ._api import attach, current, find, ps, run, start, track, wait
from ._attached import AttachedRun
from ._inputs import Artifacts, Key
from ._outlive import __version__
from ._owned import OwnedRun
from ._registry import Registry
from ._runs import Run
from ._steps import Step, step
from ._views import Event, RunRef, RunView, Stop
from ._work import Worker, enqueue, handler
from .errors import (
    Ambiguous,
    Cancelled,
    Contended,
    Denied,
    Error,
    Forbidden,
    ForkedRun,
    Invalid,
    KeyBusy,
    LeaseOver,
    Lost,
    NotFound,
    Refused,
    Stopped,
    StoreError,
    TimedOut,
    Unavailable,
    UnknownOutcome,
    Untrusted,
    WorkerEnds,
)

__all__ = [
    "Ambiguous",
    "Artifacts",
    "AttachedRun",
    "Cancelled",
    "Contended",
    "Denied",
    "Error",
    "Event",
    "Forbidden",
    "ForkedRun",
    "Invalid",
    "Key",
    "KeyBusy",
    "LeaseOver",
    "Lost",
    "NotFound",
    "OwnedRun",
    "Refused",
    "Registry",
    "Run",
    "RunRef",
    "RunView",
    "Step",
    "Stop",
    "Stopped",
    "StoreError",
    "TimedOut",
    "Unavailable",
    "UnknownOutcome",
    "Untrusted",
    "Worker",
    "WorkerEnds",
    "__version__",
    "attach",
    "current",
    "enqueue",
    "errors",
    "find",
    "handler",
    "ps",
    "run",
    "start",
    "step",
    "track",
    "wait",
]
