"""The fixtures that the package offers to the tests of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import outlive
import pytest
from outlive.pytest import killed, outlive_home, outlive_registry  # noqa: F401  (pytest finds fixtures by name)


def test_registry_of_a_test_is_found(outlive_registry: outlive.Registry, outlive_home: Path) -> None:  # noqa: F811
    with outlive.run("it"):
        pass
    assert outlive_registry.find("it").state == "succeeded" and outlive_home.exists()
    assert [view.name for view in outlive.ps()] == ["it"]


def test_run_of_a_killed_program_is_continued(
    outlive_registry: outlive.Registry, killed: Callable[[str], int]  # noqa: F811
) -> None:
    killed("with outlive.run('it') as run:\n    run.save(3)\n    print('ready', flush=True)\n    time.sleep(60)\n")
    assert outlive_registry.find("it").state == "dead"
    with outlive.run("it", resume=True) as run:
        assert (run.attempt, run.checkpoint) == (2, 3)
    with pytest.raises(pytest.fail.Exception, match="SyntaxError"):
        killed("this is no Python")
