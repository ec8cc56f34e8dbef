"""Transformers on several processes: all of them stop after the same step. Stand-ins for the package and for `torch` take the
place of gigabytes of libraries; `frameworks/` has the real package on one process."""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import outlive
import pytest

RANKS, STEPS = 3, 60


class Reduction:
    """An `all_reduce` of the greatest value, in which every rank waits for the others."""

    def __init__(self) -> None:
        self.turn, self.most, self.rounds = threading.Barrier(RANKS, timeout=30), 0, 0
        self.lock = threading.Lock()

    def all_reduce(self, value: Any, op: str) -> None:
        assert op == "max"
        with self.lock:
            self.most = max(self.most, value.number)
        if self.turn.wait() == 0:
            self.rounds += 1
        value.number = self.most
        self.turn.wait()


@pytest.fixture
def reduction(monkeypatch: pytest.MonkeyPatch) -> Reduction:
    made: Any = Reduction()
    torch: Any = ModuleType("torch")
    torch.distributed = SimpleNamespace(all_reduce=made.all_reduce, ReduceOp=SimpleNamespace(MAX="max"))

    class Tensor:
        def __init__(self, number: int) -> None:
            self.number = number

        def item(self) -> int:
            return self.number

    torch.tensor = lambda number, device: Tensor(number)
    package: Any = ModuleType("transformers")
    package.TrainerCallback = object
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "transformers", package)
    monkeypatch.delitem(sys.modules, "outlive.transformers", raising=False)
    return made  # type: ignore[no-any-return]


def test_every_rank_stops_after_the_same_step(reduction: Reduction, registry: outlive.Registry) -> None:
    callback = importlib.import_module("outlive.transformers").OutliveCallback
    sys.modules.pop("outlive.transformers")
    stopped: dict[int, int] = {}
    run = outlive.start("it", registry=registry)

    def train(rank: int) -> None:
        trained = callback(run, every=5) if rank == 0 else callback(every=5)
        args = SimpleNamespace(world_size=RANKS, device="cpu", output_dir="")
        state = SimpleNamespace(is_world_process_zero=rank == 0, global_step=0, max_steps=STEPS)
        control = SimpleNamespace(should_training_stop=False)
        trained.on_train_begin(args, state, control)
        while state.global_step < STEPS and not control.should_training_stop:
            if rank == 0 and state.global_step == 12:
                registry.cancel(run.id, "enough")
                assert run.wait_for_stop("30s") is not None
            state.global_step += 1
            trained.on_step_end(args, state, control)
        stopped[rank] = state.global_step

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stopped == dict.fromkeys(range(RANKS), 15) and reduction.rounds == 3
    run.interrupt("a test")
