"""The registry: one store of runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _outlive
from ._inputs import Duration, seconds
from ._views import Event, RunView, _time
from .errors import Invalid, hinted

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Unpack

    from ._inputs import RegistryOptions
    from ._runs import Run

_PAGE = 200


class Registry:
    """An open registry. Without a URL it is the one that the command `outlive` finds from here.

    It can be pickled: the other process opens the same URL. In a forked child every call raises `ForkedRun`.

    >>> registry = Registry("memory:")
    >>> run = registry.start("nightly")
    >>> run.succeed()
    'now'
    >>> registry.find("nightly").state
    'succeeded'
    """

    def __init__(self, url: str | None = None, *, create: bool = True) -> None:
        with hinted("`outlive.Registry(url)` takes what `--registry` of the command takes; `outlive doctor` checks it"):
            self._native = _outlive.Registry.open(url, create)

    @classmethod
    def open(cls, url: str | None = None, *, create: bool = True) -> Registry:
        """Opens the registry that `url` names, made if it is missing, unless `create` is false."""
        return cls(url, create=create)

    @property
    def url(self) -> str:
        """Its URL, which may bear a password; `str(registry)` bears none."""
        return self._native.url

    def start(self, name: str | None = None, **options: Unpack[RegistryOptions]) -> Run:
        """Starts a run in this registry, as `outlive.start` does."""
        from ._api import start

        return start(name, registry=self, **options)

    def enqueue(self, kind: str, input: Any = None, **options: Any) -> RunView:
        """Makes a run that a worker does, as `outlive.enqueue` does."""
        from ._work import enqueue

        return enqueue(kind, input, registry=self, **options)

    def find(self, text: str) -> RunView:
        """The run that `text` means: an id, the beginning of one, a name, `@last` or `@~2`."""
        return RunView._read(self._native.find(text))

    show = find

    def events(self, run: str | RunView) -> list[Event]:
        """The event log of a run, from its first event on."""
        rows = json.loads(self._native.events(self._id(run)))
        return [
            Event(
                _time(row["at"]),
                row["action"],
                row["to"],
                row["attempt"],
                row["epoch"],
                row["by"]["user"],
                row.get("reason"),
            )
            for row in rows
        ]

    def cancel(self, run: str | RunView, reason: str | None = None, *, grace: Duration | None = None) -> RunView:
        """Requests that a run be cancelled. It has stopped only if the answer is in the state `cancelled`."""
        return RunView._read(self._native.cancel(self._id(run), reason, seconds(grace)))

    def wait(self, run: str | RunView, timeout: Duration | None = None) -> RunView:
        """Waits until a run is over or parked, or for as long as `timeout`. Answers with the run as it stands then. A run
        that will be retried is waited for."""
        id, limit = self._id(run), seconds(timeout)
        deadline, pause = None if limit is None else time.monotonic() + limit, 0.02
        while True:
            view = self.find(id)
            left = None if deadline is None else deadline - time.monotonic()
            if view.is_over or view.is_parked or (left is not None and left <= 0):
                return view
            time.sleep(pause if left is None else min(pause, left))
            pause = min(pause * 1.5, 1.0)

    def reap(self) -> list[str]:
        """Marks runs whose owner is gone as dead. Answers with their ids."""
        return self._native.reap()

    def resume(self, run: str | RunView) -> Run:
        """Continues a run that is dead, interrupted or suspended: its next attempt is this process's, to be ended with
        `succeed` or `fail`. A suspended run of the queue is its worker's instead: `wake` it.

        >>> registry = Registry("memory:")
        >>> registry.start("nightly").interrupt("a shutdown")
        'now'
        >>> run = registry.resume("nightly")
        >>> run.attempt, run.succeed()
        (2, 'now')
        """
        from ._owned import OwnedRun

        found = self.find(run if isinstance(run, str) else run.id)
        make = self._native.wake if found.state == "suspended" else self._native.resume
        return OwnedRun(lambda: (self, make(found.id)), strict=True)

    def wake(self, run: str | RunView) -> RunView:
        """Has a worker continue a run of the queue that its handler has suspended."""
        id = self._id(run)
        with hinted("`registry.resume(run)` continues a run that was not queued, in this process"):
            self._native.wake_queued(id)
        return self.find(id)

    def sweep(self, *, dry_run: bool = True) -> dict[str, Any]:
        """Deletes artifacts that no run needs, or says what it would delete, as `outlive sweep --json` does. What is spared
        is what `[sweep]` of `$OUTLIVE_HOME/config.toml` says; nothing is deleted unless `dry_run` is false.

        >>> Registry("memory:").sweep()["swept"]
        []
        """
        report: dict[str, Any] = json.loads(self._native.sweep(dry_run))
        return report

    def archive(self, run: str | RunView) -> None:
        """Hides an ended run."""
        self._native.archive(self._id(run), True)

    def unarchive(self, run: str | RunView) -> None:
        """Shows an archived run again."""
        self._native.archive(self._id(run), False)

    def close(self) -> None:
        """Ends this process's work in the registry. Runs that are held go on."""
        self._native.close()

    def _id(self, run: str | RunView) -> str:
        if isinstance(run, str):
            return run if len(run) == 36 else self.find(run).id
        if not isinstance(getattr(run, "id", None), str):
            raise Invalid(f"{run!r} is no run", hint="give an id, a name, or what `find` answered")
        return run.id

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[Registry], tuple[str]]:
        if self.url == "memory:":
            raise Invalid("a registry in memory ends with its process, so it cannot be pickled", hint="open `sqlite:PATH`")
        return (Registry, (self.url,))

    def __str__(self) -> str:
        return self._native.shown

    def __repr__(self) -> str:
        # Tracebacks with values also show a registry that could not be opened.
        return f"Registry({self._native.shown!r})" if hasattr(self, "_native") else "<Registry that is not open>"

    def list(
        self,
        *,
        states: Sequence[str] | None = None,
        name: str | None = None,
        kind: str | None = None,
        labels: Mapping[str, str] | None = None,
        text: str | None = None,
        steps: bool = False,
        archived: bool | None = False,
    ) -> Iterator[RunView]:
        """Runs as they stand, newest first, read page by page."""
        wanted: dict[str, Any] = {"name": name, "kind": kind, "text": text, "archived": archived}
        wanted["states"] = list(states) if states is not None else None
        wanted["is_step"] = None if steps else False
        wanted["labels"] = dict(labels or {})
        query, cursor = json.dumps({key: value for key, value in wanted.items() if value is not None}), None
        while True:
            with hinted("`help(outlive.Registry.list)` says what each filter takes"):
                page, cursor = self._native.list(query, _PAGE, cursor)
            yield from (RunView(seen) for seen in json.loads(page))
            if cursor is None:
                return



_opened: dict[tuple[object, ...], Registry] = {}


def opened(registry: str | Registry | None) -> Registry:
    """The registry that is meant, opened once a process."""
    if isinstance(registry, Registry):
        return registry
    variable = os.environ.get(_outlive.REGISTRY_VARIABLE) or None
    named = registry or variable
    key = (os.getpid(), named, None if named else os.getcwd())
    found = _opened.get(key)
    if found is None:
        found = _opened[key] = Registry(registry)
    return found


def close_all() -> None:
    """Closes what was opened here, at the end of the process."""
    for key, registry in list(_opened.items()):
        if key[0] == os.getpid():
            del _opened[key]
            registry.close()
