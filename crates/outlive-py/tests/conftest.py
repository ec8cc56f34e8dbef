"""Fixtures: a home and a registry for each test, real interpreters, and the real command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import outlive
import pytest
import servers

ROOT = Path(__file__).resolve().parents[3]
COMMAND = Path(os.environ.get("OUTLIVE_COMMAND", ROOT / "target/debug/outlive"))
WAIT = 60.0
#: How long a program may take that ends by itself, in seconds: the long forms of tests take minutes on a busy machine.
LIMIT = 600.0
_ROUNDS = range(int(os.environ.get("OUTLIVE_PY_KILLS", "1")))
#: Repeats a test that kills something.
kill_rounds = pytest.mark.parametrize("round", _ROUNDS, ids=[f"round{number}" for number in _ROUNDS])


def until(what: Callable[[], object], limit: float = WAIT) -> object:
    """Waits for a condition, and fails where it never holds."""
    deadline = time.monotonic() + limit
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.02)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many rounds of each test that kills something had the right verdict."""
    counts: dict[str, list[int]] = {}
    for right, outcome in ((1, "passed"), (0, "failed"), (0, "error")):
        for report in terminalreporter.getreports(outcome):
            if "round" in report.nodeid and (report.when == "call" or not right):
                name = re.sub(r"-?round\d+-?|\[round\d+\]", "", report.nodeid)
                counted = counts.setdefault(name, [0, 0])
                counted[0], counted[1] = counted[0] + right, counted[1] + 1
    for name, (right, rounds) in sorted(counts.items()):
        terminalreporter.write_line(f"{name}: {rounds} rounds, {rounds - right} wrong")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, and no variable of a run."""
    monkeypatch.delenv("TRACEPARENT", raising=False)
    for name in list(os.environ):
        if name.startswith("OUTLIVE_") and name != "OUTLIVE_COMMAND":
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("OUTLIVE_HOME", str(home))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".outlive").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path / "work")
    return home


@pytest.fixture
def url(home: Path, tmp_path: Path) -> str:
    """The registry that is found from the working directory."""
    return f"sqlite:{tmp_path / 'work' / '.outlive'}"


@pytest.fixture
def registry(url: str) -> Iterator[outlive.Registry]:
    with outlive.Registry(url) as opened:
        yield opened


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """A real PostgreSQL server, started by the first test that needs it."""
    with servers.postgres() as url:
        yield url


@pytest.fixture(scope="session")
def bucket() -> Iterator[servers.Bucket]:
    """A real S3 server, started by the first test that needs it."""
    with servers.bucket() as started:
        yield started


def with_default_signals() -> None:
    """Undoes what the caller of the tests ignores: a shell SIGINT in the background, nohup SIGHUP."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Script:
    """A Python program in a file, as a real interpreter runs it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started: list[subprocess.Popen[str]] = []

    def __call__(self, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        process = self.start(code, **variables)
        out, err = process.communicate(timeout=LIMIT)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, code: str, **variables: str) -> subprocess.Popen[str]:
        self.path.write_text("import os, sys, time, outlive\n" + textwrap.dedent(code))
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, str(self.path)],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env={**os.environ, **variables},
            preexec_fn=with_default_signals,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    made = Script(tmp_path / "work" / "script.py")
    yield made
    made.end()


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command `outlive`, built from the same sources."""
    assert COMMAND.exists(), f"{COMMAND} is not built: `cargo build` builds it"

    def call(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(COMMAND), *words], capture_output=True, text=True, timeout=WAIT, stdin=subprocess.DEVNULL
        )

    return call
