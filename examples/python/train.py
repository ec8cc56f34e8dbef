"""A training loop that continues where a killed one stopped: `outlive resume train`, or start it again."""

from __future__ import annotations

import outlive


def fit(epoch: int, batch: int) -> float:
    return 1.0 / (1 + epoch * 10 + batch)


def main() -> None:
    with outlive.run("train", timeout="7d", resume=True) as run:
        for epoch in range(run.checkpoint or 0, 3):
            loss = 1.0
            for batch in outlive.track(range(10), desc=f"epoch {epoch}"):
                loss = fit(epoch, batch)
            run.save(epoch + 1)
            run.progress(epoch + 1, 3, flush=True, loss=loss)
        run.artifact("model.bin")


if __name__ == "__main__":
    main()
