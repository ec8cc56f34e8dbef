"""The fixtures that the package offers to the tests of others."""

from __future__ import annotations

from pathlib import Path

import outlive
from outlive.pytest import outlive_home, outlive_registry  # noqa: F401  (pytest finds fixtures by name)


def test_registry_of_a_test_is_found(outlive_registry: outlive.Registry, outlive_home: Path) -> None:  # noqa: F811
    with outlive.run("it"):
        pass
    assert outlive_registry.find("it").state == "succeeded" and outlive_home.exists()
    assert [view.name for view in outlive.ps()] == ["it"]
