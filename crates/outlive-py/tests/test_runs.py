"""The API inside one process."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import time
from typing import Any

import outlive
import pytest
from conftest import until


def test_checkpoint_is_durable_and_read_back(registry: outlive.Registry) -> None:
    with outlive.run("it", registry=registry) as run:
        assert run.checkpoint is None and run.attempt == 1
        assert run.save({"epoch": 4, "path": "a/ü"})
        assert registry.find(run.id).checkpoint == {"epoch": 4, "path": "a/ü"}
        assert run.save(None)
    assert registry.find("it").checkpoint is None


def test_run_is_found_listed_and_shown(registry: outlive.Registry) -> None:
    with outlive.run("a", registry=registry, labels={"team": "x", "n": 3}, kind="train") as run:
        run.artifact("s3://bucket/part-0")
        run.manifest("s3://bucket/manifest")
        run.progress(2, 10, "<b>fit</b>", flush=True, loss=0.5)
        view = run.view()
        assert (view.state, view.health, view.kind) == ("running", "healthy", "train")
        assert view.labels == {"team": "x", "n": "3"}
        assert view.artifacts == ["s3://bucket/part-0"] and view.manifest == "s3://bucket/manifest"
        assert view.progress == {"done": 2, "total": 10, "message": "<b>fit</b>", "data": {"loss": 0.5}}
        assert "&lt;b&gt;fit" in run._repr_html_() and run.id in repr(run)
    with outlive.run("b", registry=registry):
        pass
    assert [view.name for view in registry.list()] == ["b", "a"]
    assert [view.name for view in registry.list(labels={"team": "x"})] == ["a"]
    assert [view.name for view in registry.list(states=["failed"])] == []
    assert registry.find(run.id[:14]).name == "a"
    actions = [event.action for event in registry.events("a")]
    assert actions[0] == "enqueue" and actions[-1] == "finish", actions
    registry.archive("a")
    assert [view.name for view in registry.list()] == ["b"]


def test_same_registry_is_found_as_by_the_command(url: str) -> None:
    with outlive.run("here"):
        pass
    with outlive.Registry() as found:
        assert found.url == url and found.find("here").state == "succeeded"


def test_ten_thousand_reports_are_one_write_a_second(registry: outlive.Registry) -> None:
    with outlive.run("it", registry=registry) as run:
        began = time.monotonic()
        for number in range(10_000):
            run.progress(number + 1, 10_000)
        took = time.monotonic() - began
    reports = [event for event in registry.events("it") if event.action == "report"]
    assert len(reports) <= 2 + took, f"{len(reports)} reports in {took:.1f} s"
    assert registry.find("it").progress == {"done": 10_000, "total": 10_000}


def test_nested_and_parallel_runs_know_their_own(registry: outlive.Registry) -> None:
    found: dict[str, Any] = {}

    def work(name: str) -> None:
        with outlive.run(name, registry=registry) as run:
            found[name] = (run, outlive.current())

    with outlive.run("outer", registry=registry) as outer:
        threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with outlive.run("inner", registry=registry) as inner:
            assert outlive.current() is inner
        assert outlive.current() is outer
    assert outlive.current() is None
    assert all(run is here for run, here in found.values()) and len(found) == 4
    assert {view.state for view in registry.list()} == {"succeeded"}


def test_thread_of_the_only_run_finds_it(registry: outlive.Registry) -> None:
    with outlive.run("only", registry=registry) as run:
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(outlive.current()))
        thread.start()
        thread.join()
    assert found == [run]


def test_decorators_make_a_run_of_each_call(registry: outlive.Registry) -> None:
    @outlive.run(registry=registry)
    def add(a: int, b: int) -> int:
        return a + b

    @outlive.run("later", registry=registry)
    async def later() -> str:
        run = outlive.current()
        assert run is not None
        await asyncio.sleep(0)
        return run.name or ""

    assert add(1, b=2) == 3 and add.__name__ == "add"

    async def main() -> list[str]:
        return await asyncio.gather(later(), later())

    assert asyncio.run(main()) == ["later", "later"]
    assert sorted(view.name or "" for view in registry.list()) == ["add", "later", "later"]


def test_cancel_calls_back_and_is_raised(registry: outlive.Registry) -> None:
    called: list[outlive.Stop] = []
    with pytest.raises(outlive.Cancelled) as raised:
        with outlive.run("it", registry=registry) as run:
            run.on_stop(called.append)
            assert run.wait_for_stop(0.01) is None
            with outlive.Registry(registry.url) as other:
                other.cancel(run.id, "enough")
            stop = run.wait_for_stop("30s")
            assert stop is not None and (stop.kind, stop.reason) == ("cancelled", "enough")
            for _ in outlive.track(range(3)):
                pytest.fail("it should have stopped")
    assert raised.value.reason == "enough" and not isinstance(raised.value, Exception)
    assert until(lambda: [stop.kind for stop in called] == ["cancelled"])
    assert registry.find("it").state == "cancelled"


def test_steps_are_replayed_by_the_next_attempt(registry: outlive.Registry) -> None:
    calls: list[int] = []

    @outlive.step
    def fetch(page: int) -> dict[str, int]:
        calls.append(page)
        return {"page": page}

    def attempt(ends: bool) -> list[dict[str, int]]:
        with outlive.run("it", registry=registry, resume=True) as run:
            pages = [fetch(1), fetch(2)]
            with run.step("sum", *pages) as total:
                if not total.done:
                    total.set(sum(page["page"] for page in pages))
            assert total.value == 3
            if not ends:
                run.interrupt("a test")
            return pages

    assert attempt(False) == attempt(True) == [{"page": 1}, {"page": 2}]
    assert calls == [1, 2], "a step was done twice"
    view = registry.find("it")
    assert (view.state, view.attempt) == ("succeeded", 2)
    assert len(list(registry.list(steps=True))) == 1 + 6


def test_step_that_fails_is_done_again(registry: outlive.Registry) -> None:
    done: list[str] = []
    with pytest.raises(ZeroDivisionError):
        with outlive.run("it", registry=registry):
            with outlive.current().step("a"):  # type: ignore[union-attr]
                _ = 1 / 0
    with outlive.run("it", registry=registry) as run:
        with run.step("a") as step:
            done.append("again") if not step.done else None
            with pytest.raises(outlive.Invalid):
                step.set(object())
    assert done == ["again"]


def test_bad_input_raises_typed_errors_with_hints(registry: outlive.Registry, url: str) -> None:
    with pytest.raises(outlive.NotFound) as missing:
        registry.find("nothing")
    assert missing.value.code == "not_found" and "outlive ps" in (missing.value.hint or "")
    with pytest.raises(outlive.Invalid):
        outlive.Registry("ftp://nowhere")
    with pytest.raises(outlive.Error) as absent:
        outlive.Registry("sqlite:/nonexistent/x", create=False)
    assert absent.value.hint
    for options in ({"lease": "soon"}, {"beat": 5, "lease": 10}, {"timeout": -1}, {"resume": "x"}, {"kind": ""}):
        with pytest.raises(outlive.Invalid):
            outlive.run("it", registry=registry, **options).__enter__()  # type: ignore[arg-type]
    with outlive.run("it", registry=registry) as run:
        for value in (object(), float("nan"), b"bytes"):
            with pytest.raises(outlive.Invalid) as unkept:
                run.save(value)
            assert "JSON" in str(unkept.value) and unkept.value.hint
        with pytest.raises(outlive.Refused):
            run.save("x" * (2 << 20))
        with pytest.raises(outlive.Invalid, match="pickled"):
            pickle.dumps(run)
    with pytest.raises(outlive.Invalid, match="has ended"):
        run.save(1)
    with pytest.raises(outlive.Invalid, match="already"):
        run.succeed()
    assert registry.find("it").state == "succeeded", "something was lost"
    closed = outlive.Registry(url)
    closed.close()
    with pytest.raises(outlive.Invalid, match="closed"):
        closed.find("it")


def test_key_that_is_held_is_busy_and_names_the_holder(registry: outlive.Registry) -> None:
    with outlive.run("a", registry=registry, key="gpu") as holder:
        with pytest.raises(outlive.KeyBusy) as busy:
            outlive.start("b", registry=registry, key=[outlive.Key("gpu")])
        assert busy.value.holders == (holder.id,) and busy.value.code == "busy"
    with outlive.run("c", registry=registry, key="gpu"):
        pass


def test_errors_references_and_registries_survive_pickling(registry: outlive.Registry) -> None:
    with outlive.run("it", registry=registry) as run:
        ref = pickle.loads(pickle.dumps(run.ref))
        part = outlive.attach(ref)
        part.progress(1, 2, flush=True)
        part.save("from a part")
        part.verify()
        with pytest.raises(outlive.Invalid, match="owned by another"):
            part.fail("no")
    assert registry.find("it").progress == {"done": 1, "total": 2}
    with pytest.raises(outlive.Lost):
        part.verify()
    with pytest.raises(outlive.Lost):
        outlive.attach(ref)
    again = pickle.loads(pickle.dumps(registry))
    assert again.find("it").checkpoint == "from a part"
    again.close()
    with pytest.raises(outlive.NotFound) as missing:
        registry.find("nothing")
    error = pickle.loads(pickle.dumps(missing.value))
    assert (str(error), error.hint, error.code) == (str(missing.value), missing.value.hint, "not_found")


def test_part_of_a_run_is_called_back(registry: outlive.Registry) -> None:
    called: list[outlive.Stop] = []
    with pytest.raises(outlive.Cancelled):
        with outlive.run("it", registry=registry) as run:
            outlive.attach(run.ref).on_stop(called.append)
            registry.cancel(run.id, "enough")
            assert until(lambda: [stop.reason for stop in called] == ["enough"])
            until(lambda: run.stop_requested)
            run.check()


def test_work_goes_on_where_the_registry_is_away(caplog: pytest.LogCaptureFixture) -> None:
    away = "postgres://nobody@127.0.0.1:1/none"
    with pytest.warns(RuntimeWarning, match="and continues"):
        with outlive.run("it", registry=away) as run:
            run.check()
            run.progress(1, 2)
            assert run.save({"a": 1}) is False and run.checkpoint == {"a": 1}
            assert [n for n in outlive.track(range(3))] == [0, 1, 2]
    assert "not on record" in caplog.text
    with pytest.raises(outlive.Unavailable) as raised:
        outlive.start("it", registry=away, strict=True)
    assert raised.value.passing and raised.value.hint
    with pytest.raises(outlive.Unavailable):
        outlive.start("it", registry=away, key="a lock is never ignored")


def test_views_are_json(registry: outlive.Registry) -> None:
    with outlive.run("it", registry=registry):
        pass
    raw = registry.find("it").raw
    assert json.loads(json.dumps(raw)) == raw and "signature" not in raw
