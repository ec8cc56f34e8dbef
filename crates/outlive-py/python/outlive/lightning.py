"""Lightning: a callback of the `Trainer`, inside a run.

    with outlive.run("train", resume=True) as run:
        trainer = Trainer(..., callbacks=[OutliveCallback()])
        trainer.fit(model, data, ckpt_path=checkpoint_path(run))

Progress is the trainer's steps and metrics. A checkpoint is recorded once it is whole, and the next attempt finds it with
`checkpoint_path(run)`. A request to stop ends the training after its batch, and `fit` raises it.
"""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    # The older name of the same package.
    from pytorch_lightning.callbacks import Callback  # type: ignore[import-not-found,unused-ignore]

from ._owned import OwnedRun
from ._runs import Run
from ._training import Training, checkpoint_path

__all__ = ["OutliveCallback", "checkpoint_path"]


class OutliveCallback(Callback):  # type: ignore[misc,unused-ignore]
    """Reports a training to the run that is given, or to the current one."""

    def __init__(self, run: Run | None = None, *, every: int = 10) -> None:
        """`every`: after how many batches several processes agree whether to stop; a single one asks after each."""
        self._training = Training(run)
        self._every = every
        self._total: int | None = None
        #: The last path of each callback that writes checkpoints.
        self._written: dict[int, str] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self._training.begin()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        total = trainer.estimated_stepping_batches
        self._total = int(total) if isinstance(total, (int, float)) and 0 < total < float("inf") else None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.is_global_zero:
            self._training.progress(trainer.global_step, self._total, dict(trainer.callback_metrics))
            self._keep(trainer)
        if trainer.world_size == 1:
            trainer.should_stop = trainer.should_stop or self._training.stops
        elif batch_idx % self._every == 0:
            stops = trainer.strategy.reduce_boolean_decision(self._training.stops, all=False)
            trainer.should_stop = trainer.should_stop or stops

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._keep(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._keep(trainer)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._keep(trainer)
        self._training.check()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._keep(trainer)
        # Lightning turns a Ctrl-C into an exit status; what is recorded is the Ctrl-C.
        run = self._training._run
        if isinstance(exception, KeyboardInterrupt) and isinstance(run, OwnedRun) and trainer.is_global_zero:
            run._end_with(exception)

    def _keep(self, trainer: Any) -> None:
        """Records the newest checkpoint. A path that is known here was written in a hook that has returned, since
        Lightning calls callbacks that write checkpoints last."""
        if not trainer.is_global_zero:
            return
        for writer in trainer.checkpoint_callbacks:
            path = str(getattr(writer, "_last_checkpoint_saved", "") or getattr(writer, "best_model_path", ""))
            if path and self._written.get(id(writer)) != path:
                self._written[id(writer)] = path
                self._training.save(path, trainer.global_step)
