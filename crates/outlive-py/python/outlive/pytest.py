"""Fixtures for tests of programs that use outlive: `pytest_plugins = ["outlive.pytest"]`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ._registry import Registry

__all__ = ["outlive_home", "outlive_registry"]


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
