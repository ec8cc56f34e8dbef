"""Programs that are resumed, or executed by `outlive run`: they end as when they own their runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import outlive
import pytest
from conftest import Script, until

Command = Callable[..., "subprocess.CompletedProcess[str]"]
AWAY = "postgres://nobody@127.0.0.1:1/none"


def killed(script: Script, code: str, **variables: str) -> None:
    """Runs a program until it prints a line, and kills it."""
    process = script.start(code, **variables)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", (line, process.stderr.read() if process.stderr else "")
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_work_that_resumes_never_begins_without_its_registry() -> None:
    begun: list[str] = []
    with pytest.raises(outlive.Unavailable) as raised:
        with outlive.run("it", registry=AWAY, resume=True):
            begun.append("at checkpoint none")
    assert begun == [] and "resume=True" in (raised.value.hint or "")
    with pytest.raises(outlive.Unavailable):
        outlive.start("it", registry=AWAY, resume=True)


@pytest.mark.parametrize(
    ("named", "attaches"),
    [
        ("os.environ['OUTLIVE_REGISTRY']", True),
        ("outlive.Registry(os.environ['OUTLIVE_REGISTRY'])", True),
        ("'sqlite:.outlive'", True),
        ("'sqlite:other'", False),
    ],
)
def test_block_with_the_registry_of_its_process_attaches(
    script: Script, registry: outlive.Registry, command: Command, named: str, attaches: bool
) -> None:
    code = f"import os, outlive\nwith outlive.run('inner', registry={named}) as run: run.save(7)\n"
    script.path.write_text(code)
    done = command("run", "--name", "outer", "--", sys.executable, str(script.path))
    assert done.returncode == 0, done.stderr
    outer = registry.find("outer")
    assert [view.name for view in registry.list()] == ["outer"]
    assert outer.checkpoint == (7 if attaches else None)
    if not attaches:
        with outlive.Registry("sqlite:other") as other:
            assert other.find("inner").checkpoint == 7


@pytest.mark.parametrize(
    ("ends_by", "status", "expected"),
    [
        ("run.interrupt('to be continued')", 0, ("interrupted", None)),
        ("run.fail('quota', 'no room')", 0, ("failed", "quota")),
        ("run.fail(ValueError('boom'))", 0, ("failed", "ValueError")),
        ("run.succeed(); sys.exit(3)", 3, ("succeeded", None)),
        ("sys.exit(3)", 3, ("failed", "exit")),
    ],
)
def test_run_says_its_outcome_inside_the_command(
    script: Script,
    registry: outlive.Registry,
    command: Command,
    ends_by: str,
    status: int,
    expected: tuple[str, str | None],
) -> None:
    script.path.write_text(f"import outlive, sys\nwith outlive.run() as run:\n    {ends_by}\n")
    done = command("run", "--name", "it", "--", sys.executable, str(script.path))
    view = registry.find("it")
    assert (done.returncode, (view.state, view.error_type)) == (status, expected), done.stderr
    if "boom" in ends_by:
        assert view.error_message == "boom"
    left = [path.name for path in Path(".outlive/runs").rglob("outcome-*")]
    assert left == [], "what was declared was left behind"


@pytest.mark.parametrize(
    ("ends_by", "expected"),
    [
        ("pass", ("succeeded", None)),
        ("raise KeyError('x')", ("failed", "KeyError")),
        ("raise KeyboardInterrupt", ("interrupted", None)),
        ("run.interrupt('to be continued')", ("interrupted", None)),
    ],
)
def test_resumed_block_ends_as_the_first_time(
    script: Script, registry: outlive.Registry, command: Command, ends_by: str, expected: tuple[str, str | None]
) -> None:
    code = f"""
        with outlive.run('it') as run:
            if run.attempt == 1:
                print('ready', flush=True); time.sleep(60)
            {ends_by}
        os._exit(5)
        """
    killed(script, code)
    resumed = command("resume", "it")
    assert resumed.returncode == 0, resumed.stderr
    view = until(lambda: view if (view := registry.find("it")).attempt == 2 and view.is_over else None)
    assert isinstance(view, outlive.RunView)
    assert (view.state, view.error_type) == expected, view.raw


def test_start_without_a_verdict_is_interrupted_when_resumed_too(
    script: Script, registry: outlive.Registry, command: Command
) -> None:
    code = "run = outlive.start('it')\nif run.attempt == 1: print('ready', flush=True); time.sleep(60)\n"
    killed(script, code)
    assert command("resume", "it").returncode == 0
    view = until(lambda: view if (view := registry.find("it")).attempt == 2 and view.is_over else None)
    assert isinstance(view, outlive.RunView) and view.state == "interrupted", view.raw


def test_resumed_script_of_two_runs_continues_its_own(
    script: Script, registry: outlive.Registry, command: Command
) -> None:
    code = """
        with outlive.run('prepare') as prepare:
            prepare.save(['prepared', prepare.checkpoint])
        with outlive.run('train') as train:
            train.save(['trained', train.checkpoint])
            if train.attempt == 1:
                print('ready', flush=True); time.sleep(60)
        """
    killed(script, code)
    first = registry.find("prepare")
    assert command("resume", "train").returncode == 0
    train = until(lambda: view if (view := registry.find("train")).attempt == 2 and view.is_over else None)
    assert isinstance(train, outlive.RunView)
    assert (train.state, train.checkpoint) == ("succeeded", ["trained", ["trained", None]]), train.raw
    prepared = [view for view in registry.list(name="prepare")]
    assert len(prepared) == 2 and prepared[1].id == first.id, "the other block made no run of its own"
    assert [view.checkpoint for view in prepared] == [["prepared", None]] * 2
    assert {view.attempt for view in prepared} == {1}


def test_child_that_was_handed_a_resumed_run_belongs_to_it(
    script: Script, registry: outlive.Registry, command: Command
) -> None:
    code = """
        import subprocess
        with outlive.run('it') as run:
            if run.attempt == 1:
                print('ready', flush=True); time.sleep(60)
            child = 'import outlive\\nwith outlive.run("other") as run: run.artifact("made-by-a-child")'
            subprocess.run([sys.executable, '-c', child], env=os.environ | run.child_env(), check=True)
        """
    killed(script, code)
    assert command("resume", "it").returncode == 0
    view = until(lambda: view if (view := registry.find("it")).attempt == 2 and view.is_over else None)
    assert isinstance(view, outlive.RunView)
    assert (view.state, view.artifacts) == ("succeeded", ["made-by-a-child"]), view.raw


@pytest.mark.parametrize("words", [["-u", "-"], ["-u"]])
def test_program_from_standard_input_has_no_command_to_resume(
    registry: outlive.Registry, command: Command, words: list[str]
) -> None:
    code = "import outlive, os\nwith outlive.run('it'): os._exit(9)\n"
    done = subprocess.run([sys.executable, *words], input=code, text=True, capture_output=True, timeout=60)
    assert done.returncode == 9, done.stderr
    assert "command" not in registry.find("it").raw["spec"]
    resumed = command("resume", "it")
    assert registry.find("it").state == "dead" and registry.find("it").attempt == 1, resumed.stderr


def test_supervisor_continues_a_run_that_was_killed(script: Script, registry: outlive.Registry) -> None:
    from conftest import COMMAND

    code = """
        with outlive.run('train', resume_on=['crash'], max_attempts=3) as run:
            if run.attempt == 1:
                run.save(2); print('ready', flush=True); time.sleep(60)
            run.save(run.checkpoint + 1)
        """
    killed(script, code)
    words = [str(COMMAND), "supervise"]
    supervisor = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    try:
        view = until(lambda: view if (view := registry.find("train")).state == "succeeded" else None)
    finally:
        supervisor.terminate()
        supervisor.wait(60)
    assert isinstance(view, outlive.RunView) and (view.attempt, view.checkpoint) == (2, 3), view.raw


def test_run_is_continued_in_this_process(registry: outlive.Registry) -> None:
    with outlive.run("it", registry=registry) as run:
        run.save(4)
        run.interrupt("a test")
    again = registry.resume("it")
    assert (again.attempt, again.checkpoint) == (2, 4)
    again.suspend("waits for an approval")
    assert registry.find("it").state == "suspended"
    with pytest.raises(outlive.Invalid) as refused:
        registry.wake("it")
    assert "resume" in (refused.value.hint or "")
    woken = registry.resume("it")
    assert woken.succeed() == "now"
    with pytest.raises(outlive.Error):
        registry.resume("it")
