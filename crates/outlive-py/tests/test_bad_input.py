"""Bad input: a typed exception with a hint, and nothing lost."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import outlive
import pytest

AWAY = "postgres://nobody@127.0.0.1:1/none"


def refused(call: Callable[[], object], kind: type[outlive.Error], says: str) -> outlive.Error:
    with pytest.raises(kind, match=says) as raised:
        call()
    assert raised.value.code and raised.value.hint, raised.value
    return raised.value


@pytest.mark.parametrize("url", ["ftp://nowhere", "sqlite:", "nonsense", "s3://"])
def test_registry_that_no_url_names_is_refused(url: str) -> None:
    refused(lambda: outlive.Registry(url), outlive.Invalid, ".")


def test_registry_that_is_missing_or_no_directory_is_refused(tmp_path: Path) -> None:
    refused(lambda: outlive.Registry(f"sqlite:{tmp_path}/none", create=False), outlive.NotFound, "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(outlive.Error) as raised:
        outlive.Registry(f"sqlite:{tmp_path}/file")
    assert raised.value.hint, raised.value
    assert (tmp_path / "file").read_text() == ""


def test_registry_without_permission_is_denied_and_the_work_goes_on(tmp_path: Path) -> None:
    with outlive.Registry(f"sqlite:{tmp_path}/private") as registry:
        with outlive.run("before", registry=registry):
            pass
    tmp_path.chmod(0o755)
    # Root may read everything, so the test becomes another user. Every other user takes the permission from itself.
    is_root = os.getuid() == 0
    os.chmod(tmp_path / "private", 0o700 if is_root else 0o000)
    code = f"""
import outlive, warnings
warnings.simplefilter("ignore")
url = "sqlite:{tmp_path}/private"
try:
    outlive.Registry(url)
except outlive.Denied as error:
    print(error.code, bool(error.hint))
try:
    outlive.start("it", registry=url, strict=True)
except outlive.Denied as error:
    print(error.code, bool(error.hint))
with outlive.run("it", registry=url):
    print("worked")
"""
    another = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if is_root else []
    words = [*another, sys.executable, "-c", code]
    env = {**os.environ, "HOME": "/nonexistent", "OUTLIVE_HOME": "/nonexistent/outlive"}
    done = subprocess.run(words, capture_output=True, text=True, cwd="/", env=env)
    os.chmod(tmp_path / "private", 0o700)
    assert done.stdout == "denied True\ndenied True\nworked\n", done.stderr
    with outlive.Registry(f"sqlite:{tmp_path}/private") as registry:
        assert [view.name for view in registry.list()] == ["before"]


def test_registry_that_is_away_is_unavailable_with_a_hint() -> None:
    error = refused(lambda: outlive.Registry(AWAY), outlive.Unavailable, ".")
    trace = error.__traceback__
    seen = [frame.f_locals["self"] for frame, _ in traceback.walk_tb(trace) if "self" in frame.f_locals]
    assert [repr(each) for each in seen] == ["<Registry that is not open>"]
    assert error.passing and "nobody" not in (error.hint or "")


BAD: dict[str, Any] = {
    "beat": {"beat": 5, "lease": 10},
    "kind": {"kind": ""},
    "lease": {"lease": "soon"},
    "resume_on": {"resume_on": ["sometimes"]},
    "resume_on never": {"resume_on": ["never", "crash"]},
    "timeout": {"timeout": -1},
    "traceparent": {"traceparent": "00-nonsense-01"},
}


@pytest.mark.parametrize("name", list(BAD))
def test_option_that_makes_no_sense_is_refused_with_a_hint(registry: outlive.Registry, name: str) -> None:
    refused(lambda: outlive.start("it", registry=registry, **BAD[name]), outlive.Invalid, ".")
    assert list(registry.list()) == []


def test_other_calls_that_make_no_sense_are_refused_with_a_hint(registry: outlive.Registry) -> None:
    calls: list[Callable[[], object]] = [
        lambda: registry.enqueue(""),
        lambda: list(registry.list(states=["asleep"])),
        lambda: registry.events("x" * 36),
        lambda: registry.wait("x" * 36, "soon"),
        lambda: outlive.Worker({"a": print}, slots=0, registry=registry),
    ]
    for call in calls:
        refused(call, outlive.Invalid, ".")


def test_closed_registry_and_ended_run_are_refused(registry: outlive.Registry, url: str) -> None:
    closed = outlive.Registry(url)
    closed.close()
    closed.close()
    for call in (lambda: closed.find("it"), lambda: closed.start("it"), lambda: closed.enqueue("it"), closed.reap):
        refused(call, outlive.Invalid, "closed")
    with outlive.run("it", registry=registry) as run:
        run.save({"kept": True})
    ends = (run.succeed, lambda: run.fail("late"), lambda: run.interrupt("late"), lambda: run.suspend("late"))
    for call in (lambda: run.save(1), lambda: run.artifact("a"), *ends):
        refused(call, outlive.Invalid, "end")
    view = registry.find("it")
    assert (view.state, view.checkpoint, view.artifacts) == ("succeeded", {"kept": True}, [])


def test_value_that_cannot_be_kept_is_refused_and_the_last_one_stays(registry: outlive.Registry) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with outlive.run("it", registry=registry) as run:
        run.save("kept")
        for value in (object(), float("nan"), b"bytes", {1: {2}}, deep, lambda: None):
            refused(lambda value=value: run.save(value), outlive.Invalid, "JSON")  # type: ignore[misc]
        assert run.checkpoint == "kept"
    assert registry.find("it").checkpoint == "kept"


def test_result_that_cannot_be_kept_fails_its_run_alone(registry: outlive.Registry) -> None:
    queued = [registry.enqueue("gives", n) for n in range(3)]
    gives = [object(), {"fine": True}, lambda: None]
    with outlive.Worker({"gives": lambda run, n: gives[n]}, registry=registry):
        ended = [registry.wait(each, "30s") for each in queued]
    assert [each.state for each in ended] == ["failed", "succeeded", "failed"]
    assert ended[0].error_type == "outlive.errors.Invalid" and "JSON" in str(ended[0].error_message)


def test_use_in_another_process_is_refused(registry: outlive.Registry) -> None:
    with outlive.run("it", registry=registry) as run:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                calls = (run.check, lambda: run.save(1), run.succeed, lambda: registry.find("it"), registry.reap)
                for call in calls:
                    refused(call, outlive.ForkedRun, ".")
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        run.check()
    assert registry.find("it").state == "succeeded"


def test_environment_of_a_run_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLIVE_RUN_ID", "01a1e1d5-a1d0-7000-8000-000000000001")
    monkeypatch.setenv("OUTLIVE_EPOCH", "soon")
    refused(outlive.attach, outlive.Invalid, "OUTLIVE_EPOCH")
    monkeypatch.setenv("OUTLIVE_RUN_ID", "not an id")
    refused(outlive.attach, outlive.Invalid, "OUTLIVE_RUN_ID")
    monkeypatch.delenv("OUTLIVE_RUN_ID")
    monkeypatch.delenv("OUTLIVE_EPOCH")
    refused(outlive.attach, outlive.Invalid, "not inside a run")
