"""Functions of every sort that `outlive.run` decorates."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

import outlive
import pytest


def test_generator_is_a_run_from_its_first_item_to_its_last(registry: outlive.Registry) -> None:
    @outlive.run(registry=registry)
    def numbers(end: int) -> Generator[int, str, str]:
        """Counts."""
        said = []
        for number in range(end):
            run = outlive.current()
            assert run is not None and run.name == "numbers"
            said.append((yield number))
        return "".join(said)

    assert numbers.__doc__ == "Counts." and inspect.isgeneratorfunction(numbers)
    made = numbers(2)
    assert list(registry.list()) == [], "a run was made before any work"
    assert next(made) == 0 and registry.find("numbers").state == "running"
    assert made.send("a") == 1
    with pytest.raises(StopIteration) as ended:
        made.send("b")
    assert ended.value.value == "ab" and registry.find("numbers").state == "succeeded"


@pytest.mark.parametrize("ends_by", ["raise", "close"])
def test_generator_that_does_not_come_to_its_end(registry: outlive.Registry, ends_by: str) -> None:
    @outlive.run("it", registry=registry)
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("boom")

    made: Any = broken()
    assert next(made) == 1
    if ends_by == "close":
        made.close()
        assert registry.find("it").state == "interrupted"
    else:
        with pytest.raises(ValueError):
            next(made)
        assert registry.find("it").error_type == "ValueError"


def test_generators_that_take_turns_know_their_own_runs(registry: outlive.Registry) -> None:
    @outlive.run(registry=registry)
    def turn(name: str) -> Iterator[tuple[str, str]]:
        for _ in range(3):
            run = outlive.current()
            assert run is not None
            yield name, run.id

    with outlive.run("outer", registry=registry) as outer:
        found = list(zip(turn("a"), turn("b"), strict=True))
        assert outlive.current() is outer
    ids = {(name, id) for pair in found for name, id in pair}
    assert len(ids) == 2 and outer.id not in {id for _, id in ids}


def test_async_generator_is_a_run_from_its_first_item_to_its_last(registry: outlive.Registry) -> None:
    @outlive.run(registry=registry)
    async def pages(end: int) -> AsyncIterator[str]:
        for number in range(end):
            await asyncio.sleep(0)
            run = outlive.current()
            assert run is not None
            yield f"{run.name} {number}"

    async def main() -> list[str]:
        made = pages(2)
        assert list(registry.list()) == []
        read = [page async for page in made]
        closed: Any = pages(5)
        await closed.__anext__()
        await closed.aclose()
        return read

    assert asyncio.run(main()) == ["pages 0", "pages 1"]
    assert [view.state for view in registry.list()] == ["interrupted", "succeeded"]


def test_async_generator_that_raises_fails_its_run(registry: outlive.Registry) -> None:
    @outlive.run("it", registry=registry)
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise ValueError("boom")

    async def main() -> None:
        async for _ in broken():
            pass

    with pytest.raises(ValueError):
        asyncio.run(main())
    assert registry.find("it").error_type == "ValueError"


def test_partial_of_a_coroutine_function_is_awaited_inside_its_run(registry: outlive.Registry) -> None:
    async def fetch(url: str, page: int) -> tuple[str, int, str]:
        await asyncio.sleep(0)
        view = registry.find("fetch")
        return url, page, view.state

    decorated = outlive.run(registry=registry)(functools.partial(fetch, "http://x"))
    assert asyncio.run(decorated(3)) == ("http://x", 3, "running")
    assert registry.find("fetch").state == "succeeded"


def test_object_whose_call_is_a_coroutine_is_awaited_inside_its_run(registry: outlive.Registry) -> None:
    class Fetch:
        async def __call__(self) -> str:
            await asyncio.sleep(0)
            return registry.find("Fetch").state

    assert asyncio.run(outlive.run(registry=registry)(Fetch())()) == "running"


def test_method_that_is_decorated_without_parentheses_has_its_object(url: str) -> None:
    class Importer:
        def __init__(self, rows: int) -> None:
            self.rows = rows

        @outlive.run
        def load(self, factor: int = 1) -> int:
            return self.rows * factor

        @outlive.run
        async def fetch(self) -> int:
            return self.rows

    importer: Any = Importer(3)
    assert importer.load(factor=2) == 6
    assert inspect.iscoroutinefunction(importer.fetch) and asyncio.run(importer.fetch()) == 3
    assert [(view.name, view.state) for view in outlive.ps()] == [("fetch", "succeeded"), ("load", "succeeded")]
