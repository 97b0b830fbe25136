"""How long results and dead letters stay."""

from __future__ import annotations

import pytest

from pipeline.config import Pool
from pipeline.store import Store
from tokenweir.connection import Connection
from tokenweir.keys import Keys

pytestmark = pytest.mark.anyio
_DAY_MS = 86_400_000


async def _days(connection: Connection, name: str, *, now_ms: int) -> list[int]:
    """How many days old the entries of a stream are, the oldest first."""
    found = await connection.command("XRANGE", connection.keys.key(name), "-", "+")
    return [round((now_ms - int(entry.split(b"-")[0])) / _DAY_MS) for entry, _ in found]


async def test_results_and_dead_letters_stay_for_their_time(redis_url: str, keys: Keys, connection: Connection) -> None:
    """What is older than it is kept goes, also where nothing new pushes it out; all else stays."""
    store = Store(redis_url, keys, Pool(responses_age_s=2 * 86_400, dead_age_s=5 * 86_400))
    seconds, _ = await connection.command("TIME")
    now_ms = int(seconds) * 1000
    for name in ("responses", "dead"):
        for days in (9, 6, 3, 1):
            await connection.command("XADD", keys.key(name), f"{now_ms - days * _DAY_MS}-0", "a", "b")

    await store.streams.expire(now_ms=now_ms)

    assert await _days(connection, "responses", now_ms=now_ms) == [1]
    assert await _days(connection, "dead", now_ms=now_ms) == [3, 1]
    await store.aclose()
