"""Functions around which `outlive.run` makes a run: plain ones, coroutine functions and generators.

The run of a generator lasts from its first item to its end. It is the current run only while the generator works, not
between two items, when the code that takes them works.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from ._lifecycle import current_run
from ._runs import finish

if TYPE_CHECKING:
    from ._api import run
    from ._runs import Run

F = TypeVar("F", bound=Callable[..., Any])

#: Flags of code objects, as `inspect` names them: to import that would take longer than the rest of the package.
_GENERATOR, _COROUTINE, _ITERABLE_COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x100, 0x200


def decorated(function: F, block_of: Callable[[Callable[..., Any]], run]) -> F:
    """A function each call of which is a run, the block of which `block_of` makes."""
    flags = _flags(function)

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        async with block_of(function):
            return await function(*args, **kwargs)

    def generated(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _generated(block_of(function)._start(), function(*args, **kwargs)))

    def streamed(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        return _streamed(block_of(function), function(*args, **kwargs))

    def called(*args: Any, **kwargs: Any) -> Any:
        with block_of(function):
            return function(*args, **kwargs)

    wrapper: Any = called
    if flags & _ASYNC_GENERATOR:
        wrapper = streamed
    elif flags & (_COROUTINE | _ITERABLE_COROUTINE):
        wrapper = awaited
    elif flags & _GENERATOR:
        wrapper = generated
    made: F = functools.wraps(function)(wrapper)  # type: ignore[assignment]
    return made


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called; an object that can be called has the name of its class."""
    return str(getattr(_unwrapped(function), "__name__", type(function).__name__))


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _flags(function: Any) -> int:
    function = _unwrapped(function)
    code = getattr(function, "__code__", None) or getattr(getattr(type(function), "__call__", None), "__code__", None)
    return int(getattr(code, "co_flags", 0))


def _generated(run: Run, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    resume: Callable[[Any], Any] = generator.send
    value: Any = None
    try:
        while True:
            before = current_run.set(run)
            try:
                item = resume(value)
            except StopIteration as stop:
                answer = stop.value
                break
            finally:
                current_run.reset(before)
            try:
                resume, value = generator.send, (yield item)
            except BaseException as raised:  # It is the generator's to handle.
                resume, value = generator.throw, raised
    except BaseException as error:
        finish(run, error)
        raise
    finish(run, None)
    return answer


async def _streamed(block: run, generator: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    from .aio import Watched

    watched = await Watched.begin(block._start, block._signals)
    resume: Callable[[Any], Any] = generator.asend
    value: Any = None
    try:
        while True:
            before = current_run.set(watched.run)
            try:
                item = await resume(value)
            except StopAsyncIteration:
                break
            finally:
                current_run.reset(before)
            try:
                resume, value = generator.asend, (yield item)
            except BaseException as raised:  # It is the generator's to handle.
                resume, value = generator.athrow, raised
    except BaseException as error:
        await watched.end(error)
        raise
    await watched.end(None)
