"""Notebooks: the rows of "the block ends by" in a real kernel that papermill starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import outlive
import pytest
from conftest import until

BLOCK = "with outlive.run('it') as run:\n    {}"


def start(tmp_path: Path, *cells: str) -> subprocess.Popen[str]:
    """Executes a notebook with these cells. The kernel and papermill keep their files in a home of their own."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in ("import os, sys, time, outlive", *cells)]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, str(tmp_path / "in.ipynb"))
    words = [sys.executable, "-m", "papermill", "--no-progress-bar", "in.ipynb", "out.ipynb", "--cwd", os.getcwd()]
    env = {**os.environ, "HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")}
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, env=env)


def executed(tmp_path: Path, *cells: str) -> tuple[int, str]:
    process = start(tmp_path, *cells)
    _, err = process.communicate(timeout=120)
    return process.returncode, err


@pytest.mark.parametrize(
    ("ends_by", "fails", "expected"),
    [
        ("pass", False, ("succeeded", None, None)),
        ("raise ValueError('boom')", True, ("failed", "ValueError", None)),
        ("sys.exit(0)", False, ("succeeded", None, None)),
        ("sys.exit(3)", True, ("failed", "exit", None)),
        ("raise KeyboardInterrupt", True, ("interrupted", None, int(signal.SIGINT))),
        ("os.kill(os.getpid(), 9)", True, ("dead", None, None)),
        ("run.fail('quota', 'no room')", False, ("failed", "quota", None)),
    ],
)
def test_block_in_a_notebook_ends_as_recorded(
    tmp_path: Path, registry: outlive.Registry, ends_by: str, fails: bool, expected: tuple[object, ...]
) -> None:
    status, err = executed(tmp_path, BLOCK.format(ends_by))
    view = registry.find("it")
    assert (view.state, view.error_type, view.signal) == expected, err
    assert (status != 0) == fails, err


def test_run_over_several_cells_ends_with_its_kernel(tmp_path: Path, registry: outlive.Registry) -> None:
    status, err = executed(tmp_path, "run = outlive.start('it')", "run.save(1)", "outlive.current().progress(1, 2)")
    assert status == 0, err
    view = registry.find("it")
    assert (view.state, view.checkpoint, view.progress) == ("interrupted", 1, {"done": 1, "total": 2})
    # A notebook has no command line that would start it again.
    assert "command" not in view.raw["spec"]


def test_cancel_stops_the_cell(tmp_path: Path, registry: outlive.Registry) -> None:
    ready = tmp_path / "ready"
    loop = f"open({str(ready)!r}, 'w').close()\n    for _ in outlive.track(iter(int, 1)): time.sleep(0.05)"
    process = start(tmp_path, BLOCK.format(loop))
    until(ready.exists, 120)
    registry.cancel("it", "enough")
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0 and "Cancelled" in err, err
    assert registry.find("it").state == "cancelled"


def test_interrupt_of_the_kernel_is_recorded(tmp_path: Path, registry: outlive.Registry) -> None:
    pid = tmp_path / "pid"
    process = start(tmp_path, BLOCK.format(f"open({str(pid)!r}, 'w').write(f'{{os.getpid()}}\\n')\n    time.sleep(120)"))
    until(lambda: pid.exists() and pid.read_text().endswith("\n"), 120)
    os.kill(int(pid.read_text()), signal.SIGINT)
    process.communicate(timeout=120)
    view = registry.find("it")
    assert (view.state, view.signal) == ("interrupted", int(signal.SIGINT))
