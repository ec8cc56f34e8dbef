"""Ray: what tasks are told, and how they are cancelled. A stand-in for Ray records it; `frameworks/` has the real one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import outlive
import pytest


class Ray(ModuleType):
    """A task of an actor cannot be forced."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.cancelled: list[tuple[str, bool]] = []

    def cancel(self, ref: str, force: bool = False) -> None:
        if force and ref.startswith("actor"):
            raise ValueError("force=True is not supported for actor tasks.")
        self.cancelled.append((ref, force))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    made = Ray()
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.delitem(sys.modules, "outlive.ray", raising=False)
    yield made
    sys.modules.pop("outlive.ray", None)


def test_password_of_a_registry_is_not_among_the_options_of_tasks(ray: Ray, registry: outlive.Registry) -> None:
    of_ray: Any = importlib.import_module("outlive.ray")
    with outlive.run("it", registry=registry) as run:
        env = of_ray.options(run)["runtime_env"]["env_vars"]
        assert env["OUTLIVE_REGISTRY"] == registry.url and env["OUTLIVE_RUN_ID"] == run.id

        class Secret:
            url = "postgres://ada:secret@db/runs"

            def __str__(self) -> str:
                return "postgres://ada@db/runs"

        run._registry = Secret()  # type: ignore[assignment]
        assert "secret" in run.child_env()["OUTLIVE_REGISTRY"]
        told = of_ray.options(run)
        run._registry = registry
    assert "secret" not in str(told) and told["runtime_env"]["env_vars"]["OUTLIVE_RUN_ID"] == run.id


def test_stop_cancels_tasks_of_actors_too(ray: Ray, registry: outlive.Registry) -> None:
    of_ray: Any = importlib.import_module("outlive.ray")
    with pytest.raises(outlive.Cancelled):
        with outlive.run("it", registry=registry) as run:
            registry.cancel(run.id, "enough")
            assert run.wait_for_stop("30s") is not None
            of_ray.get(run, ["task-1", "actor-1"])
    assert ray.cancelled == [("task-1", True), ("actor-1", False)]
