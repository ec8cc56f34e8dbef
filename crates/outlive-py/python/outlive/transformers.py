"""Transformers: a callback of the `Trainer`, inside a run.

    with outlive.run("train", resume=True) as run:
        trainer = Trainer(..., callbacks=[OutliveCallback()])
        trainer.train(resume_from_checkpoint=checkpoint_path(run))

Progress is the trainer's steps and what it logs. A checkpoint is recorded once it is whole, and the next attempt finds it with
`checkpoint_path(run)`. A request to stop ends the training after its step, and `train` raises it.
"""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback  # type: ignore[import-not-found,unused-ignore]

from ._runs import Run
from ._training import Training, checkpoint_path

__all__ = ["OutliveCallback", "checkpoint_path"]


class OutliveCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Reports a training to the run that is given, or to the current one."""

    def __init__(self, run: Run | None = None, *, every: int = 10) -> None:
        """`every`: after how many steps several processes agree whether to stop; a single one asks after each."""
        self._training = Training(run)
        self._every = every

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._training.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.is_world_process_zero:
            self._training.progress(state.global_step, state.max_steps, {})
        if self._agrees(args, state.global_step):
            control.should_training_stop = True
        return control

    def _agrees(self, args: Any, step: int) -> bool:
        """Whether the training is to stop. Processes of one training stop after the same step, or those that go on would
        wait for the others for ever: only that of rank 0 knows the run, and tells them."""
        stops = self._training.stops
        if getattr(args, "world_size", 1) < 2:
            return stops
        if step % self._every:
            return False
        import torch  # type: ignore[import-not-found,unused-ignore]

        said = torch.tensor(int(stops), device=args.device)
        torch.distributed.all_reduce(said, op=torch.distributed.ReduceOp.MAX)
        return bool(said.item())

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._training.progress(state.global_step, state.max_steps, logs or {})

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The trainer calls it after the last file of the checkpoint is written.
        if state.is_world_process_zero:
            path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            self._training.save(path, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training.check()
