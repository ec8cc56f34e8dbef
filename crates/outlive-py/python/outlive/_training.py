"""What the callbacks of training frameworks share: the run that a training belongs to, and the checkpoint that it left."""

from __future__ import annotations

import os
from typing import Any

from ._api import current
from ._runs import Run
from .errors import Invalid

_KEY = "checkpoint_path"
#: What `progress` calls its own.
_RESERVED = frozenset({"done", "total", "message", "flush"})


class Training:
    """The part of a callback that knows the run. Only the process of rank 0 reports."""

    def __init__(self, run: Run | None) -> None:
        self._run = run

    def begin(self) -> Run:
        """The run that was given, or the one of this context."""
        run = self._run or current()
        if run is None:
            hint = 'train inside `with outlive.run("train"):`, or give the callback a run'
            raise Invalid("this training belongs to no run", hint=hint)
        self._run = run
        return run

    @property
    def stops(self) -> bool:
        """Whether there is a reason to stop."""
        return self._run is not None and self._run.stop_requested is not None

    def progress(self, done: int, total: int | None, metrics: dict[str, Any]) -> None:
        """Reports how far the training is. Metrics that are no numbers are left out."""
        if self._run is not None:
            numbers = {name: _number(value) for name, value in metrics.items() if name not in _RESERVED}
            known: dict[str, Any] = {name: number for name, number in numbers.items() if number is not None}
            self._run.progress(done, total if total and total > 0 else None, **known)

    def save(self, path: str, step: int) -> None:
        """Keeps the path of a checkpoint that is whole."""
        if self._run is not None:
            self._run.save({_KEY: os.path.abspath(path), "step": step})

    def check(self) -> None:
        """Raises where the training was stopped, so that the block does not end as if it had succeeded."""
        if self._run is not None:
            self._run.check()


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return None
    try:
        # A tensor of one element has `item`.
        number = float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        return None
    # JSON has neither infinity nor NaN.
    return number if number - number == 0.0 else None


def checkpoint_path(run: Run) -> str | None:
    """The checkpoint that an earlier attempt of the run left, where it is still there; none at first.

    >>> import outlive
    >>> with outlive.run("train", registry="memory:") as run:
    ...     before = checkpoint_path(run)
    ...     saved = run.save({"checkpoint_path": "/", "step": 3})
    ...     print(before, checkpoint_path(run))
    None /
    """
    kept = run.checkpoint
    path = kept.get(_KEY) if isinstance(kept, dict) else None
    return path if isinstance(path, str) and os.path.exists(path) else None
