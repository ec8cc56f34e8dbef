"""Lightning: the callback, against the hooks that the documentation of Lightning gives.

Lightning itself is not installed: it needs `torch`, which on Linux brings gigabytes of libraries for graphics cards. The loop
below calls the hooks in the documented order, callbacks that write checkpoints last, and turns a Ctrl-C into an exit status as
Lightning does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import outlive
import pytest


class Callback:
    """The base class: every hook does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *args: None
        raise AttributeError(name)


class ModelCheckpoint(Callback):
    """Writes a file every two steps. The attribute is set when the file is whole."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._last_checkpoint_saved, self.best_model_path = directory, "", ""

    def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
        if trainer.global_step % 2 == 0:
            path = self._directory / f"step={trainer.global_step}.ckpt"
            path.write_text("whole")
            self._last_checkpoint_saved = str(path)


class Trainer:
    world_size, is_global_zero, estimated_stepping_batches = 1, True, 6

    def __init__(self, directory: Path, *callbacks: Any) -> None:
        self.checkpoint_callbacks = [ModelCheckpoint(directory)]
        self.callbacks = [*callbacks, *self.checkpoint_callbacks]
        self.should_stop, self.global_step, self.callback_metrics = False, 0, {"loss": 0.5, "name": "x"}

    def _hook(self, name: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(self, None, *arguments)

    def fit(self, ckpt_path: str | None = None, at_step: Any = lambda step: None) -> None:
        if ckpt_path is not None:
            self.global_step = int(ckpt_path.split("step=")[1].split(".")[0])
        try:
            self._hook("on_fit_start")
            self._hook("on_train_start")
            while self.global_step < 6 and not self.should_stop:
                self.global_step += 1
                at_step(self.global_step)
                self._hook("on_train_batch_end", None, None, self.global_step - 1)
            self._hook("on_train_epoch_end")
            self._hook("on_fit_end")
        except KeyboardInterrupt as error:
            self._hook("on_exception", error)
            sys.exit(1)
        except BaseException as error:
            self._hook("on_exception", error)
            raise


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module under test, over the hooks of this file."""
    for name in ("lightning", "lightning.pytorch", "lightning.pytorch.callbacks"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["lightning.pytorch.callbacks"].Callback = Callback  # type: ignore[attr-defined]
    yield importlib.import_module("outlive.lightning")
    sys.modules.pop("outlive.lightning")


def test_training_is_reported_with_its_checkpoints(module: Any, tmp_path: Path, registry: outlive.Registry) -> None:
    with outlive.run("it", registry=registry) as run:
        Trainer(tmp_path, module.OutliveCallback()).fit(module.checkpoint_path(run))
        assert module.checkpoint_path(run) == str(tmp_path / "step=6.ckpt")
    view = registry.find("it")
    assert view.state == "succeeded"
    assert view.progress == {"done": 6, "total": 6, "data": {"loss": 0.5}}
    saves = [event for event in registry.events("it") if event.action == "report"]
    assert 3 <= len(saves) <= 6, "each checkpoint is written once"


def test_training_continues_from_its_last_checkpoint(module: Any, tmp_path: Path, registry: outlive.Registry) -> None:
    def crash(step: int) -> None:
        if step == 5:
            raise OSError("out of memory")

    with pytest.raises(OSError):
        with outlive.run("it", registry=registry):
            Trainer(tmp_path, module.OutliveCallback()).fit(at_step=crash)
    view = registry.find("it")
    assert (view.state, view.checkpoint["checkpoint_path"]) == ("failed", str(tmp_path / "step=4.ckpt"))
    steps: list[int] = []
    with outlive.run("again", registry=registry) as run:
        run.save(view.checkpoint)
        Trainer(tmp_path, module.OutliveCallback(run)).fit(module.checkpoint_path(run), steps.append)
    assert steps == [5, 6]


def test_cancel_ends_the_training_after_its_batch(module: Any, tmp_path: Path, registry: outlive.Registry) -> None:
    def cancel(step: int) -> None:
        if step == 3:
            registry.cancel("it", "enough")
            run.wait_for_stop("30s")

    trainer = Trainer(tmp_path, module.OutliveCallback())
    with pytest.raises(outlive.Cancelled):
        with outlive.run("it", registry=registry) as run:
            trainer.fit(at_step=cancel)
    assert trainer.global_step == 3 and registry.find("it").state == "cancelled"


def test_keyboard_interrupt_is_recorded_as_such(module: Any, tmp_path: Path, registry: outlive.Registry) -> None:
    def interrupt(step: int) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        with outlive.run("it", registry=registry):
            Trainer(tmp_path, module.OutliveCallback()).fit(at_step=interrupt)
    view = registry.find("it")
    assert (view.state, view.checkpoint["checkpoint_path"]) == ("interrupted", str(tmp_path / "step=2.ckpt"))


def test_training_outside_a_run_is_refused(module: Any, tmp_path: Path) -> None:
    with pytest.raises(outlive.Invalid) as refused:
        Trainer(tmp_path, module.OutliveCallback()).fit()
    assert refused.value.hint
