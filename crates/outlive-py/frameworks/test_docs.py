"""Examples in the modules of large frameworks."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["ray", "transformers"])
def test_examples_in_docstrings_run(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(f"outlive.{name}"))
    assert failed == 0
