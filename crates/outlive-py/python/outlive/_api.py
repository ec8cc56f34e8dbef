"""Starting runs: `run`, `start`, `attach`, `current`, `track`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import Token
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import _lifecycle, _outlive
from ._attached import AttachedRun, inside, takes_block
from ._decorated import decorated, name_of
from ._inputs import (
    Artifacts,
    Duration,
    Keys,
    ResumeOn,
    keys_of,
    labels_of,
    output_of,
    own_command,
    resume_on_of,
    seconds,
)
from ._owned import OwnedRun
from ._registry import Registry, opened
from ._runs import Run, finish
from ._views import RunRef, RunView
from .errors import Error, Invalid, hinted

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Unpack

    from ._inputs import Options
    from .aio import Watched

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class run:
    """A run around a block or a function.

    >>> with run("import", registry="memory:") as imported:
    ...     for number in track(range(3)):
    ...         imported.save(number)
    True
    True
    True

    As a decorator it makes a run of each call, of coroutine functions too; of a generator's call from its first item to its
    last:

    >>> @run("report", registry="memory:")
    ... def report() -> int:
    ...     return 7
    >>> report()
    7

    The registry is the one that the command `outlive` finds from here. Inside `outlive run -- python x.py` the block
    belongs to that run, and no other is made, unless another registry is given. After `outlive resume` the block belongs
    to the resumed run that has its name and kind; other blocks make runs of their own, as they did before.

    `resume="auto"` keeps the command line of this program, so that `outlive resume` can start it again with the checkpoint
    that it left. `resume=True` also continues the newest run of this name here and now, where that is dead or interrupted.
    `resume=False` does neither.

    With `resume_on=["crash"]` a supervisor starts the command line again by itself where the process died, with
    "interrupt" also after a shutdown, and with "failure" after a failure, until `max_attempts` attempts have failed. A run
    with `resume_on="never"` is resumed only by its name.

    Without `strict` a registry that is away is warned of; the work continues, and is recorded later. A run with keys is
    never begun without them, and one with `resume=True` not without the registry: its checkpoint would be missed.
    """

    if not TYPE_CHECKING:

        def __new__(cls, name: str | Callable[..., Any] | None = None, **options: Any) -> Any:
            if callable(name):
                # It is used without parentheses, as `@outlive.run`. What it decorates stays a function.
                return cls(**options)(name)
            return super().__new__(cls)

    def __init__(
        self,
        name: str | Callable[..., Any] | None = None,
        *,
        kind: str = "python",
        labels: Mapping[str, object] | None = None,
        registry: str | Registry | None = None,
        lease: Duration | None = None,
        beat: Duration | None = None,
        timeout: Duration | None = None,
        stall_after: Duration | None = None,
        max_attempts: int | None = None,
        resume_on: ResumeOn | None = None,
        key: Keys = (),
        artifacts: str | Artifacts | None = None,
        traceparent: str | None = None,
        resume: bool | str = "auto",
        strict: bool = False,
        signals: bool = True,
    ) -> None:
        if resume not in (True, False, "auto"):
            raise Invalid(f"`resume` is {resume!r}", hint='give True, False or "auto"')
        self._registry, self._strict, self._signals, self._resume = registry, strict, signals, resume
        self._spec: dict[str, Any] = {
            "name": name,
            "kind": kind,
            "labels": labels_of(labels or {}),
            "keys": keys_of(key),
            "lease": seconds(lease),
            "beat": seconds(beat),
            "timeout": seconds(timeout),
            "stall_after": seconds(stall_after),
            "max_attempts": max_attempts,
            "resume_on": resume_on_of(resume_on),
            "output": output_of(artifacts),
            "traceparent": traceparent,
        }
        self._run: Run | None = None
        self._before: Token[Run | None] | None = None
        self._watched: Watched | None = None

    def _start(self) -> Run:
        return self._attach() or self._own()

    def _attach(self) -> Run | None:
        """The run that this process belongs to, where it is the block's."""
        belongs = inside()
        if belongs is None or not is_own_registry(self._registry):
            return None
        is_block = takes_block(self._spec["name"], self._spec["kind"])
        if is_block is False:
            return None
        return AttachedRun(opened(None), *belongs, strict=self._strict, is_block=is_block is True)

    def _own(self) -> OwnedRun:
        """A run of this process's own."""
        if self._signals:
            _lifecycle.handle_signals()
        strict = self._strict or bool(self._spec["keys"])
        return OwnedRun(self._make, strict, needs_registry=self._resume is True)

    def _make(self) -> tuple[Registry, _outlive.Handle]:
        with hinted("`help(outlive.run)` says what each option takes"):
            return self._made(opened(self._registry))

    def _made(self, registry: Registry) -> tuple[Registry, _outlive.Handle]:
        earlier = self._earlier(registry) if self._resume is True else None
        if earlier is not None:
            return registry, registry._native.resume(earlier.id)
        command = own_command(self._spec["name"], self._spec["kind"]) if self._resume else None
        return registry, registry._native.start(json.dumps(self._spec), command)

    def _earlier(self, registry: Registry) -> RunView | None:
        """The newest run of this name, where it can be continued."""
        name = self._spec["name"]
        newest = next(registry.list(name=name, kind=self._spec["kind"]), None) if name else None
        return newest if newest is not None and newest.state in ("dead", "interrupted") else None

    def __enter__(self) -> Run:
        if self._run is not None:
            raise Invalid("this block is being executed", hint="call `outlive.run(...)` for each run")
        self._run = self._start()
        self._before = _lifecycle.current_run.set(self._run)
        return self._run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = self._leave()
        if ended is not None:
            finish(ended, error)

    def _leave(self) -> Run | None:
        ended, self._run = self._run, None
        if self._before is not None:
            _lifecycle.current_run.reset(self._before)
            self._before = None
        return ended

    async def __aenter__(self) -> Run:
        from .aio import Watched

        if self._run is not None:
            raise Invalid("this block is being executed", hint="call `outlive.run(...)` for each run")
        self._watched = await Watched.begin(self._start, self._signals)
        self._run = self._watched.run
        self._before = _lifecycle.current_run.set(self._run)
        return self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watched, self._watched = self._watched, None
        self._leave()
        if watched is not None:
            await watched.end(error)

    def _again(self, function: Callable[..., Any]) -> run:
        again = object.__new__(run)
        again.__dict__.update(self.__dict__, _run=None, _before=None, _watched=None)
        again._spec = {**self._spec, "name": self._spec["name"] or name_of(function)}
        return again

    @overload
    def __call__(self, function: F, /) -> F: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __call__(self, function: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not callable(function) or args or kwargs:
            raise Invalid("`outlive.run(...)` is called with a function alone", hint="use it in `with`, or as a decorator")
        return decorated(function, self._again)


def is_own_registry(registry: str | Registry | None) -> bool:
    """Whether a registry is the one that the run of this process is in, as its environment says."""
    own = os.environ.get(_outlive.REGISTRY_VARIABLE)
    given = registry.url if isinstance(registry, Registry) else registry
    if given is None or given == own:
        return True
    scheme = "sqlite:"
    if own is None or not (given.startswith(scheme) and own.startswith(scheme)):
        return False
    return os.path.realpath(given[len(scheme) :]) == os.path.realpath(own[len(scheme) :])


def start(name: str | None = None, **options: Unpack[Options]) -> Run:
    """Starts a run without a block: end it with `succeed` or `fail`. Takes what `outlive.run` takes.

    Where the process ends first, it is recorded as failed with the uncaught exception, or as interrupted.
    """
    return run(name, **options)._start()


def attach(ref: RunRef | None = None, *, registry: str | Registry | None = None, strict: bool = True) -> AttachedRun:
    """The run that `ref` names, or that this process belongs to by its environment, in a worker, a task or a child."""
    if ref is not None:
        return AttachedRun(opened(registry or ref.url), ref.id, ref.epoch, strict)
    belongs = inside()
    if belongs is None:
        hint = "start it with `outlive run -- COMMAND`, or hand `run.ref` over and call `outlive.attach(ref)`"
        raise Invalid("this process is not inside a run", hint=hint)
    return AttachedRun(opened(registry), *belongs, strict=strict)


_attached: dict[tuple[object, ...], AttachedRun] = {}


def current() -> Run | None:
    """The run of this context; else the only run of this process; else the one that the environment names."""
    found = _lifecycle.current_run.get() or _lifecycle.only()
    if found is None and "distributed.worker" in sys.modules:
        # A task of Dask knows its run, whether or not its code has imported that module.
        from . import dask as _
    for fallback in list(_lifecycle.fallbacks):
        found = found or fallback()
    if found is not None:
        return found
    belongs = inside()
    if belongs is None:
        return None
    key = (os.getpid(), *belongs)
    if key not in _attached:
        try:
            _attached[key] = attach(strict=False)
        except Error as error:
            _lifecycle.log.warning("outlive: the run of this process cannot be attached to: %s", error)
            return None
    return _attached[key]


def track(iterable: Iterable[T], total: int | None = None, desc: str | None = None) -> Iterator[T]:
    """Iterates and reports progress to the current run; stops with `Cancelled` and the like where that should.

    >>> list(track([1, 2, 3]))
    [1, 2, 3]
    """
    here = current()
    if here is None:
        yield from iterable
        return
    if total is None:
        try:
            total = len(iterable)  # type: ignore[arg-type]
        except TypeError:
            pass
    done = 0
    for item in iterable:
        here.check()
        yield item
        done += 1
        here.progress(done, total, desc)


def find(text: str) -> RunView:
    """The run that `text` means, in the registry that is found from here."""
    return opened(None).find(text)


def ps(**wanted: Any) -> list[RunView]:
    """Runs in the registry that is found from here, newest first. Takes what `Registry.list` takes."""
    return list(opened(None).list(**wanted))


def wait(runs: str | RunView | Iterable[str | RunView], timeout: Duration | None = None) -> list[RunView]:
    """Waits until runs are over, for as long as `timeout` each."""
    several = [runs] if isinstance(runs, (str, RunView)) else list(runs)
    return [opened(None).wait(each, timeout) for each in several]
