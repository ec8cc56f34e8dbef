"""Queued runs and the workers that do them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable

import outlive
import pydantic
import pytest
from conftest import Script, until


def test_worker_does_queued_runs_in_order(registry: outlive.Registry) -> None:
    done: list[str] = []

    def work(run: outlive.OwnedRun) -> None:
        here = outlive.current()
        assert here is run
        done.append(run.labels["n"])
        run.save({"squared": int(run.labels["n"]) ** 2})

    queued = [registry.enqueue("square", labels={"n": n}, priority=9 - n) for n in range(5)]
    assert {each.state for each in queued} == {"pending"}
    with outlive.Worker({"square": work}, registry=registry):
        ended = [registry.wait(each, "20s") for each in queued]
    assert done == ["4", "3", "2", "1", "0"]
    assert [(each.state, each.checkpoint) for each in ended] == [("succeeded", {"squared": n * n}) for n in range(5)]


def test_slots_work_at_the_same_time(registry: outlive.Registry) -> None:
    together = threading.Barrier(3, timeout=20)
    queued = [registry.enqueue("meet") for _ in range(3)]
    with outlive.Worker({"meet": lambda run: together.wait()}, slots=3, registry=registry):
        assert {registry.wait(each, "20s").state for each in queued} == {"succeeded"}


def test_handler_that_fails_fails_its_run_alone(registry: outlive.Registry) -> None:
    @outlive.handler("fragile")
    def fragile(run: outlive.OwnedRun) -> None:
        raise RuntimeError(run.labels["why"])

    bad = registry.enqueue("fragile", labels={"why": "bad input"})
    with outlive.Worker(registry=registry):
        view = registry.wait(bad, "20s")
        again = registry.wait(registry.enqueue("fragile", labels={"why": "x"}), "20s")
    assert (view.state, view.error_type) == ("failed", "RuntimeError")
    assert (view.error_message or "").startswith("bad input")
    assert again.state == "failed"


def test_unique_key_makes_one_run(registry: outlive.Registry) -> None:
    key = outlive.Key("daily", unique=True)
    first, second = (registry.enqueue("report", key=key) for _ in range(2))
    assert first.id == second.id


def test_worker_that_stops_interrupts_what_is_left(registry: outlive.Registry) -> None:
    begun = threading.Event()
    held = threading.Event()
    found: list[str] = []

    def long(run: outlive.OwnedRun) -> None:
        begun.set()
        held.wait(20)
        try:
            run.check()
        except outlive.WorkerEnds as ends:
            found.append(ends.code)

    queued = registry.enqueue("long")
    worker = outlive.Worker({"long": long}, registry=registry, grace=0.1).start()
    assert begun.wait(20)
    worker.stop()
    assert registry.find(queued.id).state == "interrupted"
    held.set()
    assert until(lambda: found == ["worker_ends"])


@pytest.mark.parametrize("way", ["check", "on_stop", "wait_for_stop"])
def test_handlers_learn_that_their_worker_stops(registry: outlive.Registry, way: str) -> None:
    begun = threading.Event()

    def long(run: outlive.OwnedRun) -> None:
        asked = threading.Event()
        if way == "on_stop":
            run.on_stop(lambda stop: asked.set() if stop.kind == "worker_ends" else None)
        begun.set()
        if way == "wait_for_stop":
            stop = run.wait_for_stop("30s")
            assert stop is not None and stop.kind == "worker_ends"
        elif way == "on_stop":
            assert asked.wait(30)
        while way == "check":
            run.check()
            time.sleep(0.01)
        run.save("saved in time")
        run.interrupt("said by its handler")

    queued = registry.enqueue("long")
    worker = outlive.Worker({"long": long}, registry=registry, grace=0.1).start()
    assert begun.wait(20)
    worker.stop()
    view = registry.find(queued.id)
    assert view.state == "interrupted", view.raw
    assert view.checkpoint == (None if way == "check" else "saved in time")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_handlers_work_for_the_grace(script: Script, registry: outlive.Registry, number: int) -> None:
    queued = registry.enqueue("work")
    process = script.start(
        """
        @outlive.handler("work")
        def work(run):
            print("ready", flush=True)
            assert worker._stopping.wait(60)
            return "done in time"
        worker = outlive.Worker(grace=60)
        worker.run()
        """
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -number, err
    view = registry.find(queued.id)
    assert (view.state, view.result) == ("succeeded", "done in time"), err


KILLED = """
    @outlive.handler("work")
    def work(run):
        print("ready", flush=True)
        time.sleep(60)
    outlive.Worker().run()
    """


def test_run_of_a_killed_worker_is_seen_dead(script: Script, registry: outlive.Registry) -> None:
    queued = registry.enqueue("work")
    process = script.start(KILLED)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert until(lambda: registry.find(queued.id).state == "dead")


def test_run_of_a_killed_worker_is_retried_while_another_is_busy(
    script: Script, registry: outlive.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = registry.enqueue("work", max_attempts=3)
    process = script.start(KILLED)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    monkeypatch.setattr("outlive._work._REAP_EVERY", 0.05)
    goes = threading.Event()
    busy = registry.enqueue("busy")
    handlers = {"busy": lambda run: goes.wait(60), "work": lambda run: run.attempt}
    with outlive.Worker({"busy": handlers["busy"]}, registry=registry):
        until(lambda: registry.find(busy.id).state == "running")
        until(lambda: registry.find(queued.id).state == "pending")
        with outlive.Worker({"work": handlers["work"]}, registry=registry):
            view = registry.wait(queued, "60s")
        goes.set()
        registry.wait(busy, "60s")
    assert (view.state, view.result) == ("succeeded", 2)


def test_run_that_a_shutdown_interrupts_is_retried(registry: outlive.Registry) -> None:
    queued = registry.enqueue("work", max_attempts=2)
    begun = threading.Event()

    def work(run: outlive.OwnedRun) -> int:
        begun.set()
        while run.attempt == 1:
            run.check()
            time.sleep(0.01)
        return run.attempt

    worker = outlive.Worker({"work": work}, registry=registry, grace=0).start()
    assert begun.wait(20)
    worker.stop()
    assert registry.find(queued.id).state == "pending"
    with outlive.Worker({"work": work}, registry=registry):
        assert registry.wait(queued, "60s").result == 2


def test_worker_is_stopped_with_its_process(script: Script, registry: outlive.Registry) -> None:
    queued = [registry.enqueue("slow") for _ in range(8)]
    done = script("outlive.Worker({'slow': lambda run: time.sleep(0.2)}, slots=4).start()\ntime.sleep(0.4)\n")
    assert (done.returncode, done.stderr) == (0, "")
    states = {registry.find(each.id).state for each in queued}
    assert states <= {"succeeded", "pending"} and "succeeded" in states, states


def test_worker_without_handlers_is_refused(registry: outlive.Registry) -> None:
    with pytest.raises(outlive.Invalid) as refused:
        outlive.Worker({}, registry=registry)
    assert refused.value.hint


@dataclasses.dataclass
class Resize:
    path: str
    width: int = 640


class Thumbnail(pydantic.BaseModel):
    path: str
    bytes: int


def test_input_is_typed_and_what_a_handler_returns_is_the_result(registry: outlive.Registry) -> None:
    def resize(run: outlive.OwnedRun, wanted: Resize) -> Thumbnail:
        assert run.input == {"path": wanted.path, "width": wanted.width}
        return Thumbnail(path=wanted.path, bytes=wanted.width * 2)

    def check(run: outlive.OwnedRun, thumbnail: Thumbnail) -> list[int]:
        return [thumbnail.bytes, run.attempt]

    made = registry.enqueue("resize", Resize("a.png", 320))
    plain = registry.enqueue("plain", {"a": [1, None]})
    with outlive.Worker({"resize": resize, "check": check, "plain": lambda run: run.input}, registry=registry):
        result = registry.wait(made, "20s").result
        checked = registry.wait(registry.enqueue("check", result), "20s")
        same = registry.wait(plain, "20s")
    assert result == {"path": "a.png", "bytes": 640}
    assert checked.result == [640, 1]
    assert (same.input, same.result) == ({"a": [1, None]}, {"a": [1, None]})


def test_input_that_does_not_fit_and_result_that_is_not_json_fail_the_run(registry: outlive.Registry) -> None:
    def takes(run: outlive.OwnedRun, wanted: Resize) -> None:
        raise AssertionError("called with what does not fit")

    def model(run: outlive.OwnedRun, wanted: Thumbnail) -> None:
        raise AssertionError("called with what does not fit")

    odd = [registry.enqueue("takes", {"paths": 1}), registry.enqueue("model", {"path": "a"}), registry.enqueue("gives")]
    with outlive.Worker({"takes": takes, "model": model, "gives": lambda run: object()}, registry=registry):
        ended = [registry.wait(each, "20s") for each in odd]
    assert {each.state for each in ended} == {"failed"}
    assert {each.error_type for each in ended} == {"outlive.errors.Invalid"}
    assert "cannot be read as Resize" in str(ended[0].error_message)
    assert "the result cannot be kept as JSON" in str(ended[2].error_message)
    with pytest.raises(outlive.Invalid):
        registry.enqueue("takes", object())
    with pytest.raises(outlive.Invalid, match="longest"):
        registry.enqueue("takes", "x" * (1 << 20))


def test_command_enqueues_for_a_handler_and_prints_its_result(
    registry: outlive.Registry, command: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    words = ("--registry", registry.url)
    added = command(*words, "queue", "add", "--kind", "square", "--name", "nine", "--input", '{"n": 3}')
    assert added.returncode == 0, added.stderr
    early = command(*words, "result", "nine")
    assert early.returncode != 0 and "has no result: it is pending" in early.stderr
    with outlive.Worker({"square": lambda run, input: {"square": input["n"] ** 2}}, registry=registry):
        registry.wait("nine", "20s")
    printed = command(*words, "result", "nine")
    assert (printed.returncode, printed.stdout) == (0, '{"square":9}\n'), printed.stderr
    shown = json.loads(command(*words, "show", "nine", "--json").stdout)
    assert (shown["input"], shown["result"], shown["result_bytes"]) == ({"n": 3}, {"square": 9}, 12)


def test_handler_and_children_continue_the_trace_of_the_maker(
    registry: outlive.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, said = (f"00-{digit * 32}-00f067aa0ba902b7-01" for digit in "ab")
    monkeypatch.setenv("TRACEPARENT", here)
    queued = [registry.enqueue("trace"), registry.enqueue("trace", traceparent=said)]
    with pytest.raises(outlive.Invalid, match="trace parent"):
        registry.enqueue("trace", traceparent="00-nonsense-01")
    # A variable that is malformed was set for other programs.
    monkeypatch.setenv("TRACEPARENT", "nonsense")
    queued.append(registry.enqueue("trace"))
    gives = {"trace": lambda run: [run.traceparent, run.child_env().get("TRACEPARENT")]}
    with outlive.Worker(gives, registry=registry):
        ended = [registry.wait(each, "20s") for each in queued]
    assert [each.result for each in ended] == [[here, here], [said, said], [None, None]]
    assert [each.traceparent for each in queued] == [here, said, None]
    monkeypatch.setenv("TRACEPARENT", here)
    with outlive.run("it", registry=registry) as run:
        assert run.traceparent == here
    with outlive.run("it", registry=registry, traceparent=said) as run:
        assert run.traceparent == said


def test_run_with_attempts_left_is_tried_again(registry: outlive.Registry) -> None:
    def fragile(run: outlive.OwnedRun) -> int:
        if run.attempt < 2:
            raise RuntimeError("not yet")
        return run.attempt

    queued = registry.enqueue("fragile", max_attempts=3)
    with outlive.Worker({"fragile": fragile}, registry=registry):
        view = registry.wait(queued, "60s")
    assert (view.state, view.result) == ("succeeded", 2)
