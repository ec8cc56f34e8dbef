"""A queue: runs that wait in the registry, and a worker that does them."""

from __future__ import annotations

import outlive


@outlive.handler("resize")
def resize(run: outlive.OwnedRun) -> None:
    run.save({"path": run.labels["path"], "width": 640})


def main() -> None:
    registry = outlive.Registry()
    queued = [registry.enqueue("resize", labels={"path": f"{number}.png"}) for number in range(3)]
    with outlive.Worker(slots=2, registry=registry):
        for each in queued:
            print(registry.wait(each, "1m").checkpoint)


if __name__ == "__main__":
    main()
