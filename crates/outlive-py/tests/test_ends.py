"""The table "the block ends by → recorded", row by row, in real interpreters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import outlive
import pytest
from conftest import Script, until, with_default_signals

BLOCK = "with outlive.run('it') as run:\n    {}\n"
READY = "print('ready', flush=True)"


def recorded(registry: outlive.Registry) -> tuple[str, str | None, int | None]:
    view = registry.find("it")
    return view.state, view.error_type, view.signal


@pytest.mark.parametrize(
    ("ends_by", "status", "expected"),
    [
        ("pass", 0, ("succeeded", None, None)),
        ("raise ValueError('boom')", 1, ("failed", "ValueError", None)),
        ("sys.exit(0)", 0, ("succeeded", None, None)),
        ("sys.exit(3)", 3, ("failed", "exit", None)),
        ("sys.exit('no input')", 1, ("failed", "exit", None)),
        ("raise KeyboardInterrupt", -signal.SIGINT, ("interrupted", None, int(signal.SIGINT))),
        ("os._exit(4)", 4, ("dead", None, None)),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL, ("dead", None, None)),
        ("run.succeed()", 0, ("succeeded", None, None)),
        ("run.fail('quota', 'no room')", 0, ("failed", "quota", None)),
    ],
)
def test_block_ends_as_recorded(
    script: Script, registry: outlive.Registry, ends_by: str, status: int, expected: tuple[object, ...]
) -> None:
    done = script(BLOCK.format(ends_by))
    assert done.returncode == status, done.stderr
    assert recorded(registry) == expected


def test_exception_is_recorded_with_its_place_and_raised(script: Script, registry: outlive.Registry) -> None:
    done = script("def work():\n    raise KeyError('x')\n" + BLOCK.format("work()"))
    assert "KeyError" in done.stderr and done.returncode == 1
    assert registry.find("it").error_message == "'x' (script.py:3 in work)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_is_recorded_and_has_its_effect(script: Script, registry: outlive.Registry, number: int) -> None:
    process = script.start(BLOCK.format(f"{READY}; time.sleep(60)"))
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.wait() == -number
    assert recorded(registry) == ("interrupted", None, int(number))


def test_keyboard_interrupt_from_the_terminal_is_recorded(script: Script, registry: outlive.Registry) -> None:
    process = script.start(BLOCK.format(f"{READY}; time.sleep(60)"))
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.wait() == -signal.SIGINT
    assert recorded(registry) == ("interrupted", None, int(signal.SIGINT))


def test_own_handler_is_left_alone(script: Script, registry: outlive.Registry) -> None:
    code = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
    process = script.start(code + BLOCK.format(f"{READY}; time.sleep(60)"))
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait() == 5
    assert recorded(registry) == ("failed", "exit", None)


def test_handler_is_not_installed_where_signals_are_off(script: Script, registry: outlive.Registry) -> None:
    process = script.start(f"with outlive.run('it', signals=False):\n    {READY}; time.sleep(60)\n")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait() == -signal.SIGTERM
    assert recorded(registry)[0] == "dead"


def test_cancel_raises_and_is_recorded(script: Script, registry: outlive.Registry) -> None:
    process = script.start(
        f"""
        with outlive.run('it') as run:
            {READY}
            try:
                while True:
                    run.check(); time.sleep(0.01)
            except Exception:
                print('swallowed')
        """
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    registry.cancel("it", "enough")
    out, err = process.communicate(timeout=60)
    assert "Cancelled: cancelled by" in err and "enough" in err and "swallowed" not in out
    assert recorded(registry)[0] == "cancelled"


def test_first_process_of_a_container_ends_by_its_signal(script: Script, registry: outlive.Registry) -> None:
    """The kernel ends it by no signal that has its default effect."""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this machine makes no namespaces")
    code = f"import os, time, outlive\nwith outlive.run('it'):\n    assert os.getpid() == 1\n    {READY}; time.sleep(60)\n"
    pipe = subprocess.PIPE
    words = [*unshare, sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=pipe, text=True, preexec_fn=with_default_signals) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        first = until(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        assert isinstance(first, list)
        os.kill(int(first[0]), signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert recorded(registry) == ("interrupted", None, int(signal.SIGTERM))


def test_timeout_raises_and_is_recorded(script: Script, registry: outlive.Registry) -> None:
    done = script("with outlive.run('it', timeout=0.3) as run:\n    while True: run.check(); time.sleep(0.01)\n")
    assert "TimedOut" in done.stderr
    assert recorded(registry)[:2] == ("failed", "timeout")


@pytest.mark.parametrize(
    ("ends_by", "expected"),
    [
        ("pass", ("interrupted", None)),
        ("raise ValueError('boom')", ("failed", "ValueError")),
        ("run.succeed()", ("succeeded", None)),
        ("import threading; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", ("interrupted", None)),
        ("import atexit; atexit.register(lambda: 1 / 0)", ("interrupted", None)),
    ],
)
def test_start_without_a_block_ends_with_the_process(
    script: Script, registry: outlive.Registry, ends_by: str, expected: tuple[object, ...]
) -> None:
    script(f"run = outlive.start('it')\n{ends_by}\n")
    assert recorded(registry)[:2] == expected


def test_asyncio_task_that_is_cancelled_is_interrupted(script: Script, registry: outlive.Registry) -> None:
    done = script(
        """
        import asyncio
        async def work():
            async with outlive.run('it'):
                await asyncio.sleep(60)
        async def main():
            task = asyncio.create_task(work())
            await asyncio.sleep(0.5)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                print('cancelled')
        asyncio.run(main())
        """
    )
    assert done.stdout == "cancelled\n", done.stderr
    assert recorded(registry)[0] == "interrupted"


def test_asyncio_task_is_cancelled_by_a_cancel(script: Script, registry: outlive.Registry) -> None:
    process = script.start(
        f"""
        import asyncio
        @outlive.run("it")
        async def work():
            {READY}
            await asyncio.sleep(60)
        asyncio.run(work())
        """
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    registry.cancel("it", "enough")
    _, err = process.communicate(timeout=60)
    assert "outlive.errors.Cancelled" in err, err
    assert recorded(registry)[0] == "cancelled"


def test_generator_that_is_closed_is_interrupted(registry: outlive.Registry) -> None:
    def held() -> object:
        with outlive.run("it", registry=registry):
            yield 1

    generator = held()
    next(generator)  # type: ignore[call-overload]
    generator.close()  # type: ignore[attr-defined]
    assert recorded(registry)[0] == "interrupted"


@pytest.mark.parametrize(
    ("ends_by", "status", "expected"),
    [
        ("pass", 0, ("succeeded", None, None)),
        ("raise ValueError('boom')", 1, ("failed", "ValueError", None)),
        ("assert 1 == 2", 1, ("failed", "AssertionError", None)),
        ("sys.exit(0)", 1, ("succeeded", None, None)),
        ("sys.exit(3)", 1, ("failed", "exit", None)),
        ("raise KeyboardInterrupt", 2, ("interrupted", None, int(signal.SIGINT))),
        ("os._exit(4)", 4, ("dead", None, None)),
        ("os.kill(os.getpid(), 15)", -signal.SIGTERM, ("interrupted", None, int(signal.SIGTERM))),
        ("run.succeed()", 0, ("succeeded", None, None)),
    ],
)
def test_block_under_pytest_ends_as_recorded(
    script: Script, registry: outlive.Registry, ends_by: str, status: int, expected: tuple[object, ...]
) -> None:
    test = f"import os, sys, outlive\ndef test_it():\n    with outlive.run('it') as run:\n        {ends_by}\n"
    script.path.with_name("test_inner.py").write_text(test)
    pytest_is_run = "raise SystemExit(pytest.main(['-q', '-p', 'no:cacheprovider', 'test_inner.py']))"
    done = script(f"import pytest\n{pytest_is_run}\n")
    assert done.returncode == status, done.stdout + done.stderr
    assert recorded(registry) == expected


def test_start_without_a_block_under_pytest_ends_with_pytest(script: Script, registry: outlive.Registry) -> None:
    test = "import outlive\nheld = []\ndef test_it():\n    held.append(outlive.start('it'))\n"
    script.path.with_name("test_inner.py").write_text(test)
    done = script("import pytest\nraise SystemExit(pytest.main(['-q', '-p', 'no:cacheprovider', 'test_inner.py']))\n")
    assert done.returncode == 0, done.stdout
    assert recorded(registry)[0] == "interrupted"
