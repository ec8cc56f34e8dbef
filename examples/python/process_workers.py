"""Workers in processes of their own: a handler that holds the interpreter's lock, or crashes, stops no other."""

from __future__ import annotations

import outlive


@outlive.handler("primes")
def primes(run: outlive.OwnedRun, below: int) -> int:
    found = 0
    for number in outlive.track(range(2, below), desc="numbers"):
        found += all(number % divisor for divisor in range(2, int(number**0.5) + 1))
    return found


def main() -> None:
    registry = outlive.Registry()
    queued = [registry.enqueue("primes", limit) for limit in (100, 1_000, 2_000)]
    with outlive.Worker(processes=2, registry=registry):
        for each in queued:
            print(each.input, registry.wait(each, "1m").result)


# The processes import this file again, so what starts them is not at its top level.
if __name__ == "__main__":
    main()
