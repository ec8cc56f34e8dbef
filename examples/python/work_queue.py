"""A queue: runs that wait in the registry, and a worker that does them."""

from __future__ import annotations

from dataclasses import dataclass

import outlive


@dataclass
class Resize:
    path: str
    width: int = 640


@outlive.handler("resize")
def resize(run: outlive.OwnedRun, wanted: Resize) -> dict[str, object]:
    return {"path": wanted.path, "width": wanted.width}


def main() -> None:
    registry = outlive.Registry()
    queued = [registry.enqueue("resize", Resize(f"{number}.png")) for number in range(3)]
    with outlive.Worker(slots=2, registry=registry):
        for each in queued:
            print(registry.wait(each, "1m").result)


if __name__ == "__main__":
    main()
