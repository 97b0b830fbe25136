"""Producers that go on whatever happens, and remember what they were promised and when."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis import Redis

from tests.support import eventually
from tokenweir import Client, StoreUnavailable
from tokenweir.durability import Durability
from tokenweir.keys import Keys
from tokenweir.wire import Result, result_from_fields

_EVERY_S = 0.02


class Load:
    """Requests of one producer. `taken`: ids that were acknowledged, with the time at which they were."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self.keys = keys
        self._client = client
        self._stop = asyncio.Event()
        self.taken: dict[str, float] = {}
        self.refused: list[str] = []

    async def more(self, count: int, timeout_s: float = 20.0) -> float:
        """Return once so many more have been acknowledged; the time of the first of them."""
        before = len(self.taken)
        await eventually(
            lambda: len(self.taken) >= before + count, timeout_s, why=f"no more than {before}: {self.refused[-3:]}"
        )
        return list(self.taken.values())[before]

    async def results(self) -> list[Result]:
        """Their results, once there is one for each."""
        return [await self._client.result(id_, timeout_s=30) for id_ in self.taken]

    async def run(self) -> None:
        """Submit, one after the other; what wasn't acknowledged is left, and its id not used again."""
        for number in itertools.count():
            if self._stop.is_set():
                return
            try:
                id_ = await self._client.submit(f"[load {number}] where is it?", id=f"load{number}")
                self.taken[id_] = time.monotonic()
            except StoreUnavailable as error:
                self.refused.append(str(error))
            await asyncio.sleep(_EVERY_S)

    def stop(self) -> None:
        """Submit no more."""
        self._stop.set()


@asynccontextmanager
async def load(url: str, pool: str, *, durability: Durability = "aof") -> AsyncIterator[Load]:
    """Requests for as long as the block lasts."""
    async with Client(url, pool=pool, durability=durability) as client:
        made = Load(client, Keys(pool))
        task = asyncio.create_task(made.run())
        try:
            yield made
        finally:
            made.stop()
            await asyncio.wait([task])
            task.result()


def lives(client: Redis | Any, keys: Keys) -> dict[tuple[str, int], int]:
    """How many results each life of each request has."""
    entries: Any = client.xrange(keys.key("responses"))
    results = (result_from_fields(fields) for _, fields in entries)
    return Counter((result.id, result.replay) for result in results)
