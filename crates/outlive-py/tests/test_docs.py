"""The documentation: examples that run, and types that hold."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import outlive
import pytest
from conftest import ROOT

PACKAGE = Path(outlive.__file__).parent
EXAMPLES = sorted((ROOT / "examples/python").glob("*.py"))
#: Modules that need a framework which is not installed for every run of the tests, and the native half, which has no examples.
WITHOUT = {"_outlive", "lightning", "ray", "transformers"}
MODULES = sorted(f"outlive.{each.name}" for each in pkgutil.iter_modules(outlive.__path__) if each.name not in WITHOUT)


@pytest.mark.parametrize("name", ["outlive", *MODULES])
def test_examples_in_docstrings_run(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_examples_in_the_guide_run() -> None:
    failed, tried = doctest.testfile(str(ROOT / "docs/python.md"), module_relative=False)
    assert failed == 0 and tried > 5


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run_to_their_end(path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_types_of_package_and_examples_are_strict() -> None:
    words = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "-p", "outlive"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=ROOT / "target")
    assert done.returncode == 0, done.stdout
    words = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *map(str, EXAMPLES)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=ROOT / "target")
    assert done.returncode == 0, done.stdout


def test_types_of_functions_and_options_are_kept(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import outlive
@outlive.run("report", timeout="1h")
def report(day: str) -> int:
    return 7
reveal_type(report)
outlive.start("it", timout="1h")
outlive.Registry().start("it", timeout=["1h"])
"""
    )
    words = [sys.executable, "-m", "mypy", "--strict", str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=ROOT / "target")
    assert "def (day: str) -> int" in done.stdout and "timout" in done.stdout, done.stdout
    assert "Found 2 errors" in done.stdout, done.stdout


def test_pyright_finds_no_error_in_package_and_examples() -> None:
    """Pyright from PyPI without Node from elsewhere. The examples are held to its strict mode (`pyproject.toml`)."""
    words = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "-p", str(ROOT / "crates/outlive-py")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "0 errors, 0 warnings" in done.stdout, done.stdout


def test_import_pulls_in_nothing_slow() -> None:
    slow = "{'asyncio', 'dataclasses', 'inspect', 'logging', 'multiprocessing'}"
    code = f"import sys; sys.path[:] = {sys.path!r}\nimport outlive; print(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr
