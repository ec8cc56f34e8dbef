"""What a run says of itself while its registry is away, and from processes that do not own it."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable
from typing import Any

import outlive
import pytest
from conftest import Script, until


class Away:
    """What stands for a native object whose registry is away until it is `back`."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.back, self.tried = inner, threading.Event(), 0

    def report(self, *words: Any) -> None:
        self.tried += 1
        if not self.back.is_set():
            raise outlive.Unavailable("the registry is away")
        if "refused" in words[-1]:
            raise outlive.Refused("it is not taken")
        self.inner.report(*words)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def owned(run: outlive.Run) -> tuple[outlive.OwnedRun, Away]:
    assert isinstance(run, outlive.OwnedRun) and run._handle is not None
    away = Away(run._handle)
    run._handle = away  # type: ignore[assignment]
    return run, away


SAYS: dict[str, Callable[[outlive.Run], object]] = {
    "artifact": lambda run: run.artifact("part-2"),
    "progress": lambda run: run.progress(1, 2, flush=True),
    "save": lambda run: run.save(8),
    "end": lambda run: None,
}


@pytest.mark.parametrize("says", list(SAYS))
def test_reports_of_an_outage_are_sent_with_the_next(registry: outlive.Registry, says: str) -> None:
    with outlive.run("it", registry=registry) as begun:
        run, away = owned(begun)
        assert (run.artifact("part-0"), run.artifact("part-1")) == (False, False)
        assert (run.manifest("manifest"), run.save(7)) == (False, False)
        away.back.set()
        SAYS[says](run)
        if says != "end":
            view = run.view()
            assert view.artifacts[:2] == ["part-0", "part-1"] and view.manifest == "manifest"
            assert view.checkpoint == (8 if says == "save" else 7)
    view = registry.find("it")
    assert (view.state, view.artifacts[:2], view.manifest) == ("succeeded", ["part-0", "part-1"], "manifest")
    assert view.checkpoint == (8 if says == "save" else 7)


def test_report_that_is_refused_holds_up_no_other(registry: outlive.Registry) -> None:
    with outlive.run("it", registry=registry) as begun:
        run, away = owned(begun)
        assert run.artifact("refused") is False and run.artifact("part-1") is False
        away.back.set()
        run.save(1)
        assert run.view().artifacts == ["part-1"]


def attached(run: outlive.Run) -> tuple[outlive.AttachedRun, Away]:
    part = outlive.attach(run.ref, strict=False)
    away = Away(part.registry._native)
    part._registry = outlive.Registry.__new__(outlive.Registry)
    part._registry._native = away  # type: ignore[assignment]
    return part, away


def test_progress_of_a_part_waits_for_no_registry(registry: outlive.Registry) -> None:
    with outlive.run("it", registry=registry) as run:
        part, away = attached(run)
        held, goes = threading.Event(), threading.Event()

        def report(*words: Any) -> None:
            held.set()
            assert goes.wait(60)
            away.inner.report(*words)

        away.report = report  # type: ignore[method-assign]
        began = time.monotonic()
        for number in range(10_000):
            part.progress(number, 10_000)
        assert time.monotonic() - began < 5 and held.wait(30), "the work waited for the registry"
        goes.set()
        part.progress(10_000, 10_000, flush=True)
        assert registry.find("it").progress["done"] == 10_000


def test_part_tries_less_often_while_its_registry_is_away(
    registry: outlive.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlive._attached._EVERY", 0.01)
    with outlive.run("it", registry=registry) as run:
        part, away = attached(run)
        part.progress(1, 2)
        until(lambda: away.tried >= 4)
        assert part._writer is not None and part._writer.is_alive()
        tried, began = away.tried, time.monotonic()
        until(lambda: away.tried > tried)
        assert time.monotonic() - began > 0.05, "it tries at the same pace"
        away.back.set()
        until(lambda: registry.find("it").progress.get("done") == 1)


def test_last_progress_of_a_part_without_a_block_is_written(script: Script, registry: outlive.Registry) -> None:
    with outlive.run("it", registry=registry) as run:
        code = "run = outlive.current()\nfor n in range(101): run.progress(n, 100)\n"
        done = script(code, **run.child_env())
        assert done.returncode == 0 and done.stderr == "", done.stderr
        assert registry.find("it").progress["done"] == 100


def test_wait_for_a_stop_takes_descriptors_beyond_1024(script: Script, registry: outlive.Registry) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_048:
        pytest.skip("the limit of open files cannot be raised")
    code = """
        import resource
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
        held = [os.open('/dev/null', os.O_RDONLY) for _ in range(1100)]
        with outlive.run('it') as run:
            assert run.wait_for_stop(0.05) is None
            assert run._handle.stop_descriptor() > 1023
        """
    done = script(code)
    assert done.returncode == 0, done.stderr
    assert registry.find("it").state == "succeeded"
