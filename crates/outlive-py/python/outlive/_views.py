"""Runs as they are read: values without a connection to their registry."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


class RunRef(NamedTuple):
    """A reference to an attempt of a run, to be handed to other processes. It bears no secret.

    >>> import pickle
    >>> ref = RunRef("sqlite:/data/.outlive", "01a1e1d5-a1d0-7000-8000-000000000001", 3)
    >>> pickle.loads(pickle.dumps(ref)) == ref
    True
    """

    #: The registry; none where its URL bears a secret, and the other process must be told by `OUTLIVE_REGISTRY`.
    url: str | None
    id: str
    epoch: int


class Event(NamedTuple):
    """One line of a run's event log."""

    at: datetime | None
    action: str
    state: str
    attempt: int
    epoch: int
    by: str
    reason: str | None


class Stop(NamedTuple):
    """Why the work should stop."""

    #: `cancelled`, `lost`, `timed_out`, `lease_over`, or in a handler `worker_ends`.
    kind: str
    by: str | None = None
    reason: str | None = None


class RunView:
    """A run as it stood when it was read.

    The fields that are used most are attributes; `raw` has everything that is on record.
    """

    __slots__ = ("health", "is_over", "is_parked", "leftovers", "raw", "reason", "state")

    def __init__(self, seen: dict[str, Any]) -> None:
        self.raw: dict[str, Any] = seen["record"]
        #: `pending`, `running`, `suspended`, `succeeded`, `failed`, `cancelled`, `interrupted` or `dead`.
        self.state: str = seen["state"]
        #: How it does, if it runs: `healthy`, `late`, `stalled`, `overdue`, `unresponsive` or `orphaned`.
        self.health: str | None = seen["health"]
        self.reason: str | None = seen["reason"]
        #: Whether it has ended. A run whose owner is gone, and that is retried once a worker has seen that, has not.
        self.is_over: bool = seen["is_over"]
        #: Whether it waits for a person to unpark it, because its owners kept dying.
        self.is_parked: bool = seen["is_parked"]
        #: Pids of processes that live on although the owner is gone.
        self.leftovers: tuple[int, ...] = tuple(seen["leftovers"])

    @classmethod
    def _read(cls, text: str) -> RunView:
        return cls(json.loads(text))

    @property
    def id(self) -> str:
        return str(self.raw["id"])

    @property
    def name(self) -> str | None:
        name: str | None = self.raw["spec"].get("name")
        return name

    @property
    def kind(self) -> str:
        return str(self.raw["spec"]["kind"])

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.raw["spec"].get("labels", {}))

    @property
    def attempt(self) -> int:
        return int(self.raw["attempt"])

    @property
    def epoch(self) -> int:
        return int(self.raw["epoch"])

    @property
    def input(self) -> Any:
        return self.raw["spec"].get("input")

    @property
    def traceparent(self) -> str | None:
        traceparent: str | None = self.raw["spec"].get("traceparent")
        return traceparent

    @property
    def result(self) -> Any:
        return self.raw.get("result")

    @property
    def checkpoint(self) -> Any:
        return self.raw.get("checkpoint")

    @property
    def progress(self) -> dict[str, Any]:
        return dict(self.raw.get("progress") or {})

    @property
    def artifacts(self) -> list[str]:
        return list(self.raw.get("artifacts", []))

    @property
    def manifest(self) -> str | None:
        manifest: str | None = self.raw.get("manifest_ref")
        return manifest

    @property
    def created_at(self) -> datetime | None:
        return _time(self.raw.get("created_at"))

    @property
    def updated_at(self) -> datetime | None:
        return _time(self.raw.get("updated_at"))

    def _outcome(self) -> dict[str, Any]:
        how = (self.raw.get("ended") or {}).get("how")
        inner = next(iter(how.values())) if isinstance(how, dict) else {}
        return inner if isinstance(inner, dict) else {}

    @property
    def error_type(self) -> str | None:
        return self._outcome().get("error_type")

    @property
    def error_message(self) -> str | None:
        return self._outcome().get("error_message")

    @property
    def signal(self) -> int | None:
        return self._outcome().get("signal")

    def __repr__(self) -> str:
        return f"<RunView {self.name or self.kind!r} {self.id} {self.state}>"

    def _repr_html_(self) -> str:
        from ._html import run_table

        return run_table(self)
