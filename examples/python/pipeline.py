"""A pipeline of durable steps: what a step has returned is not computed again by a later attempt."""

from __future__ import annotations

import outlive


@outlive.step
def fetch(day: str) -> list[int]:
    return [len(day), 2, 3]


@outlive.step(version=2)
def total(rows: list[int]) -> int:
    return sum(rows)


@outlive.run("report", labels={"team": "finance"})
def report(day: str) -> int:
    return total(fetch(day))


if __name__ == "__main__":
    print(report("2026-11-17"))
