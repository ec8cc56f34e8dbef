"""Starting runs: `run`, `start`, `attach`, `current`, `track`."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import Token
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import _lifecycle, _outlive
from ._attached import AttachedRun, inside
from ._inputs import Artifacts, Duration, Keys, keys_of, labels_of, output_of, own_command, seconds
from ._owned import OwnedRun
from ._registry import Registry, opened
from ._runs import Run
from ._views import RunRef, RunView
from .errors import Error, Invalid

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Unpack

    from ._inputs import Options

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_COROUTINE = 0x80


class run:
    """A run around a block or a function.

    >>> with run("import", registry="memory:") as imported:
    ...     for number in track(range(3)):
    ...         imported.save(number)
    True
    True
    True

    As a decorator it makes a run of each call, of coroutine functions too:

    >>> @run("report", registry="memory:")
    ... def report() -> int:
    ...     return 7
    >>> report()
    7

    The registry is the one that the command `outlive` finds from here. Inside `outlive run -- python x.py` the block
    belongs to that run, and no other is made.

    `resume="auto"` keeps the command line of this program, so that `outlive resume` and a supervisor can start it again
    with the checkpoint that it left. `resume=True` also continues the newest run of this name here and now, where that is
    dead or interrupted. `resume=False` does neither.

    Without `strict` a registry that is away is warned of; the work continues, and is recorded later. A run with keys is
    never begun without them.
    """

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
        key: Keys = (),
        artifacts: str | Artifacts | None = None,
        traceparent: str | None = None,
        resume: bool | str = "auto",
        strict: bool = False,
        signals: bool = True,
    ) -> None:
        self._function = None if name is None or isinstance(name, str) else name
        if self._function is not None:
            functools.update_wrapper(self, self._function)
            name = self._function.__name__
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
            "output": output_of(artifacts),
            "traceparent": traceparent,
        }
        self._run: Run | None = None
        self._before: Token[Run | None] | None = None

    def _start(self) -> Run:
        belongs = inside()
        if belongs is not None and self._registry is None:
            return AttachedRun(opened(None), *belongs, strict=self._strict)
        if self._signals:
            _lifecycle.handle_signals()
        return OwnedRun(self._make, self._strict or bool(self._spec["keys"]))

    def _make(self) -> tuple[Registry, _outlive.Handle]:
        registry = opened(self._registry)
        earlier = self._earlier(registry) if self._resume is True else None
        if earlier is not None:
            return registry, registry._native.resume(earlier.id)
        command = own_command() if self._resume else None
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
        ended, self._run = self._run, None
        if self._before is not None:
            _lifecycle.current_run.reset(self._before)
            self._before = None
        if ended is not None:
            finish(ended, error)

    async def __aenter__(self) -> Run:
        from .aio import entered

        self._run, self._before = await entered(self._start)
        return self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from .aio import left

        ended, self._run = self._run, None
        if self._before is not None:
            _lifecycle.current_run.reset(self._before)
            self._before = None
        if ended is not None:
            await left(ended, error)

    def _again(self, function: Callable[..., Any]) -> run:
        again = object.__new__(run)
        again.__dict__.update(self.__dict__, _run=None, _before=None, _function=None)
        again._spec = {**self._spec, "name": self._spec["name"] or function.__name__}
        return again

    @overload
    def __call__(self, function: F, /) -> F: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is not None:
            # It was used without parentheses: `@outlive.run`.
            return self._wrap(self._function)(*args, **kwargs)
        if len(args) == 1 and not kwargs and callable(args[0]):
            return self._wrap(args[0])
        raise Invalid("`outlive.run(...)` is called with a function alone", hint="use it in `with`, or as a decorator")

    def _wrap(self, function: F) -> F:
        if getattr(getattr(function, "__code__", None), "co_flags", 0) & _COROUTINE:

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                async with self._again(function):
                    return await function(*args, **kwargs)

            return awaited  # type: ignore[return-value]

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with self._again(function):
                return function(*args, **kwargs)

        return called  # type: ignore[return-value]


def finish(ended: Run, error: BaseException | None) -> None:
    """Records how a block ended, unless its code has said so itself. In a forked child nothing is recorded."""
    if os.getpid() == ended._pid and not (isinstance(ended, OwnedRun) and ended.is_over):
        ended._end_with(error)


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
    for fallback in _lifecycle.fallbacks:
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
