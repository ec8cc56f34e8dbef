"""asyncio: a run around coroutines. `outlive cancel fetch` cancels the task that is in the block."""

from __future__ import annotations

import asyncio

import outlive
import outlive.aio


async def fetch(page: int) -> int:
    await asyncio.sleep(0.01)
    return page * 10


async def main() -> None:
    async with outlive.run("fetch", timeout="10m", resume=True) as run:
        for page in range(run.checkpoint or 0, 5):
            print(page, await fetch(page))
            await outlive.aio.save(run, page + 1)


if __name__ == "__main__":
    asyncio.run(main())
