"""The configuration of a registry applies to Python as to the command."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import outlive
import pytest

Command = Callable[..., "subprocess.CompletedProcess[str]"]

CONFIG = """
beat = "1s"
lease = "7s"
timeout = "2h"

[kinds.train]
timeout = "3d"
stall_after = "30m"
max_attempts = 4

[redact]
patterns = ["ACME-[0-9]+"]
"""


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    path = tmp_path / "work/.outlive/config.toml"
    path.write_text(CONFIG)
    return path


def policy(run: str) -> object:
    return outlive.find(run).raw["spec"]["policy"]


@pytest.mark.parametrize("kind", ["train", "other"])
def test_policy_is_the_one_that_the_command_gives(configured: Path, command: Command, kind: str) -> None:
    with outlive.run("of python", kind=kind):
        pass
    done = command("run", "--kind", kind, "--name", "of the command", "--", "true")
    assert done.returncode == 0, done.stderr
    assert policy("of python") == policy("of the command")
    assert policy("of python")["lease"] == {"beat_ms": 1000, "lease_ms": 7000}  # type: ignore[index]


def test_queued_run_has_the_policy_of_its_kind(configured: Path) -> None:
    given = outlive.enqueue("train").raw["spec"]["policy"]
    assert given["limits"] == {"stall_after_ms": 1_800_000, "timeout_ms": 3 * 86_400_000}
    assert given["retry"]["max_attempts"] == 4


def test_call_comes_before_the_configuration(configured: Path) -> None:
    with outlive.run("it", kind="train", timeout="5m", lease=30):
        pass
    found = outlive.find("it").raw["spec"]["policy"]
    assert found["limits"] == {"stall_after_ms": 1_800_000, "timeout_ms": 300_000}
    assert found["lease"] == {"beat_ms": 1000, "lease_ms": 30_000}


def test_patterns_of_the_configuration_are_masked(configured: Path) -> None:
    with outlive.run("it", labels={"badge": "ACME-123"}) as run:
        run.progress(message="of ACME-77", flush=True)
        assert run.view().progress["message"] == "of [redacted]"
    assert outlive.find("it").labels == {"badge": "[redacted]"}


def test_home_configures_a_registry_at_a_url(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text('[registries."postgres://127.0.0.1:1/none"]\nlease = "1s"\n')
    with pytest.raises(outlive.Invalid, match="three beats"):
        outlive.Registry("postgres://me:secret@127.0.0.1:1/none")
    (home / "config.toml").write_text('[registries."postgres://127.0.0.1:1/none"]\nlease = "30s"\n')
    with pytest.raises(outlive.Unavailable):
        outlive.Registry("postgres://me:secret@127.0.0.1:1/none")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lease = 5", "config.toml"),
        ('command = "curl evil"', "unknown field"),
        ('[kinds.train]\nlease = "1s"', "three beats"),
        ('[redact]\npatterns = ["("]', "redact"),
    ],
)
def test_configuration_that_cannot_be_used_is_refused(configured: Path, text: str, says: str) -> None:
    configured.write_text(text)
    with pytest.raises(outlive.Invalid, match=says):
        outlive.Registry()
    assert [path.name for path in configured.parent.iterdir()] == ["config.toml"], "something was made"
