"""The fixtures of the other tests, for tests that start large frameworks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_path = Path(__file__).resolve().parents[1] / "tests/conftest.py"
_spec = importlib.util.spec_from_file_location("outlive_test_fixtures", _path)
sys.path.append(str(_path.parent))
assert _spec is not None and _spec.loader is not None
_shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_shared)

Script, until, kill_rounds = _shared.Script, _shared.until, _shared.kill_rounds
COMMAND, pytest_terminal_summary = _shared.COMMAND, _shared.pytest_terminal_summary
bucket, database = _shared.bucket, _shared.database
home, url, registry, script, command = _shared.home, _shared.url, _shared.registry, _shared.script, _shared.command
