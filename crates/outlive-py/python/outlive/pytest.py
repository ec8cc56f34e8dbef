"""Fixtures for tests of programs that use outlive: `pytest_plugins = ["outlive.pytest"]`."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ._registry import Registry

__all__ = ["killed", "outlive_home", "outlive_registry"]


@pytest.fixture
def outlive_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own. No variable of a run that the tests are in reaches the test."""
    for name in [name for name in os.environ if name.startswith("OUTLIVE_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "outlive-home"
    monkeypatch.setenv("OUTLIVE_HOME", str(home))
    return home


@pytest.fixture
def outlive_registry(outlive_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry of the test's own, which `outlive.run(...)` finds."""
    url = f"sqlite:{tmp_path / 'outlive-registry'}"
    monkeypatch.setenv("OUTLIVE_REGISTRY", url)
    with Registry(url) as registry:
        yield registry


@pytest.fixture
def killed(outlive_registry: Registry, tmp_path: Path) -> Callable[[str], int]:
    """Runs code in an interpreter of its own, and kills that as a power cut would as soon as it prints a line. Answers
    with its pid. The runs that it has begun are then dead, and can be resumed:

        pid = killed("with outlive.run('train') as run: run.save(3); print('ready', flush=True); time.sleep(60)")
    """

    def kill(code: str) -> int:
        script = tmp_path / "killed.py"
        script.write_text("import os, sys, time, outlive\n" + textwrap.dedent(code))
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, str(script)], stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            process.kill()
            if not line:
                pytest.fail(f"it ended before it printed a line: {process.stderr.read()}")
        return process.pid

    return kill
