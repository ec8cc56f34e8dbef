"""Transformers: the callback under the package's own dispatcher of events.

`torch` is not installed: on Linux it brings gigabytes of libraries for graphics cards. So no model is trained. The events are
those that the package's `CallbackHandler` sends for a training loop, in the order that its documentation gives.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import outlive
import pytest
from outlive.transformers import OutliveCallback, checkpoint_path
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback, TrainerControl, TrainerState


class Loop:
    """The loop of a trainer, without a model: it sends what a trainer sends, and obeys what callbacks ask for."""

    def __init__(self, output: Path, callback: Any, rank: int = 0) -> None:
        self.args = SimpleNamespace(
            output_dir=str(output),
            logging_first_step=False,
            logging_strategy="no",
            eval_strategy="no",
            save_strategy="steps",
            eval_delay=0,
        )
        self.state = TrainerState(max_steps=6, save_steps=2, is_world_process_zero=rank == 0)
        self.control = TrainerControl()
        self.events = CallbackHandler([DefaultFlowCallback, callback], None, None, None, None)

    def train(self, resume_from_checkpoint: str | None = None, at_step: Any = lambda step: None) -> int:
        if resume_from_checkpoint is not None:
            self.state.global_step = int(resume_from_checkpoint.rsplit("-", 1)[1])
        args, state, control, events = self.args, self.state, self.control, self.events
        control = events.on_train_begin(args, state, control)
        while state.global_step < state.max_steps and not control.should_training_stop:
            control = events.on_step_begin(args, state, control)
            state.global_step += 1
            at_step(state.global_step)
            control = events.on_step_end(args, state, control)
            control = events.on_log(args, state, control, {"loss": 1 / state.global_step, "name": "x"})
            if control.should_save:
                (Path(args.output_dir) / f"checkpoint-{state.global_step}").mkdir(parents=True)
                control = events.on_save(args, state, control)
        events.on_train_end(args, state, control)
        return int(state.global_step)


def test_training_is_reported_with_its_checkpoints(tmp_path: Path, registry: outlive.Registry) -> None:
    with outlive.run("it", registry=registry) as run:
        assert checkpoint_path(run) is None
        assert Loop(tmp_path, OutliveCallback()).train() == 6
        assert checkpoint_path(run) == str(tmp_path / "checkpoint-6")
    view = registry.find("it")
    assert view.state == "succeeded" and view.checkpoint["step"] == 6
    assert view.progress == {"done": 6, "total": 6, "data": {"loss": 1 / 6}}


def test_training_that_failed_is_resumed_from_its_last_checkpoint(tmp_path: Path, registry: outlive.Registry) -> None:
    def crash(step: int) -> None:
        if step == 5:
            raise OSError("out of memory")

    with pytest.raises(OSError):
        with outlive.run("it", registry=registry) as run:
            Loop(tmp_path, OutliveCallback()).train(at_step=crash)
    assert registry.find("it").state == "failed"
    steps: list[int] = []
    with outlive.run("again", registry=registry) as run:
        run.save(registry.find("it").checkpoint)
        Loop(tmp_path, OutliveCallback(run)).train(checkpoint_path(run), steps.append)
    assert steps == [5, 6]


def test_cancel_ends_the_training_after_its_step(tmp_path: Path, registry: outlive.Registry) -> None:
    def cancel(step: int) -> None:
        if step == 3:
            registry.cancel("it", "enough")
            run.wait_for_stop("30s")

    loop = Loop(tmp_path, OutliveCallback())
    with pytest.raises(outlive.Cancelled):
        with outlive.run("it", registry=registry) as run:
            loop.train(at_step=cancel)
    assert loop.state.global_step == 3 and registry.find("it").state == "cancelled"


def test_other_ranks_report_nothing_and_training_outside_a_run_is_refused(
    tmp_path: Path, registry: outlive.Registry
) -> None:
    with outlive.run("it", registry=registry):
        Loop(tmp_path, OutliveCallback(), rank=1).train()
    assert registry.find("it").progress == {} and registry.find("it").checkpoint is None
    with pytest.raises(outlive.Invalid) as refused:
        Loop(tmp_path / "other", OutliveCallback()).train()
    assert refused.value.hint
