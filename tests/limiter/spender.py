"""A program that makes calls of its own and writes down each: `<monotonic s> <tokens>` a line. Run by a test."""

from __future__ import annotations

import asyncio
import random
import sys
import time

from tokenweir import Limiter, LimitReached


async def spend(limiter: Limiter, *, largest: int, until: float, dice: random.Random) -> None:
    """Make one call after the other, as fast as the budget allows."""
    while (left_s := until - time.monotonic()) > 0:
        tokens = dice.randint(1, largest)
        try:
            async with limiter.reserve(tokens=tokens, wait_s=left_s):
                print(f"{time.monotonic():.6f} {tokens}")
        except LimitReached:
            return


async def main(url: str, pool: str, seed: int, largest: int, until: float) -> None:
    """Four callers until that time, once all is ready."""
    async with Limiter(url, pool=pool) as limiter, asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(spend(limiter, largest=largest, until=until, dice=random.Random(seed * 4 + number)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])))
