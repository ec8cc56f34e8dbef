"""Durable steps: parts of the work that are done once, however often the run is resumed."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from contextvars import Token
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import _outlive
from ._endings import ending_of
from ._inputs import dumped
from ._lifecycle import current_step
from .errors import Error, Invalid

if TYPE_CHECKING:
    from types import TracebackType

    from ._runs import Run

F = TypeVar("F", bound=Callable[..., Any])


class Step:
    """A part of the work. Where an earlier attempt has done it with the same inputs, it is `done` and has its `value`.

    >>> import outlive
    >>> with outlive.run("report", registry="memory:") as run:
    ...     with run.step("fetch", "orders since May") as fetch:
    ...         if not fetch.done:
    ...             rows = fetch.set(1250)
    ...     print(fetch.value)
    1250
    """

    def __init__(self, run: Run, name: str, inputs: tuple[Any, ...]) -> None:
        self.name = name
        #: Whether an earlier attempt has done it.
        self.done = False
        #: What it returned; none until then.
        self.value: Any = None
        self._run = run
        self._inputs = json.dumps(inputs, sort_keys=True, default=repr).encode()
        self._handle: _outlive.Handle | None = None
        self._within: Token[str | None] | None = None

    def set(self, value: Any) -> Any:
        """Says what the step returned: any JSON, up to 1 MiB. Kept when the block ends. Answers with it."""
        if self.done:
            hint = "do the work only `if not step.done`, and use `step.value`"
            raise Invalid(f"the step `{self.name}` is done: an earlier attempt returned its value", hint=hint)
        dumped(value, "result of the step")
        self.value = value
        return value

    def __enter__(self) -> Step:
        self._begin()
        self._enter()
        return self

    def _begin(self) -> None:
        native = self._run.registry._native
        begun = native.begin_step(self._run.id, self._run.epoch, self.name, self._inputs, current_step.get())
        if isinstance(begun, str):
            self.done, self.value = True, json.loads(begun)
        else:
            self._handle = begun

    def _enter(self) -> None:
        if self._handle is not None:
            self._within = current_step.set(self._handle.id)

    def _leave(self) -> None:
        if self._within is not None:
            current_step.reset(self._within)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        if self._handle is None:
            return
        if error is None:
            self._handle.keep(dumped(self.value, "result of the step"))
            return
        ending = ending_of(error, None)
        how = "failed" if ending.how in ("succeeded", "cancelled", "lost") else ending.how
        try:
            self._handle.end(how, ending.error_type or "stopped", ending.message, ending.signal)
        except Error:
            # The registry learns of it with the end of the run; the exception says more.
            pass


@overload
def step(function: F) -> F: ...
@overload
def step(*, name: str | None = None, version: object = None) -> Callable[[F], F]: ...
def step(function: Callable[..., Any] | None = None, *, name: str | None = None, version: object = None) -> Any:
    """Makes a step of a function: called inside a run, its result is kept and returned again by later attempts.

    The result is JSON. It depends on the arguments and `version`; a function whose code has changed gets another version.
    Called again in the same attempt it is another step: `fetch`, `fetch#2`. Outside a run it is just called.
    """

    def decorate(function: F) -> F:
        from ._api import current

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            run = current()
            if run is None:
                return function(*args, **kwargs)
            with run.step(_numbered(run, name or function.__qualname__), args, kwargs, version) as begun:
                if not begun.done:
                    begun.set(function(*args, **kwargs))
            return begun.value

        return called  # type: ignore[return-value]

    return decorate if function is None else decorate(function)


def _numbered(run: Run, name: str) -> str:
    count = run._names[name] = run._names.get(name, 0) + 1
    return name if count == 1 else f"{name}#{count}"
