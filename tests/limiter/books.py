"""What stands in Redis about a budget, read by hand, and budgets made ready for a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tokenweir import Limiter
from tokenweir.connection import Connection

# A window so long that nothing leaves it while a test runs, and next to nothing is refilled.
LIMITS: dict[str, Any] = {"rpm": 1_000_000, "tpm": 10_000_000, "window_s": 100_000, "send_within_s": 60}
Open = Callable[..., Limiter]

# In one step, since limiters are at work meanwhile.
_WARM = """
local budget = cmsgpack.unpack(redis.call('GET', KEYS[1]))
if ARGV[1] == 'old' then budget.born = 1 end
for i = 2, #ARGV, 2 do budget.limits[ARGV[i]].level = tonumber(ARGV[i + 1]) end
redis.call('SET', KEYS[1], cmsgpack.pack(budget))
"""


class Books:
    """The budget of one deployment as it stands in Redis."""

    def __init__(self, connection: Connection, deployment: str = "primary") -> None:
        self._connection = connection
        self._key = connection.keys.key(f"budget:{deployment}")

    async def _read(self) -> dict[str, Any]:
        saved: dict[str, Any] = msgspec.msgpack.decode(await self._connection.command("GET", self._key))
        return saved

    async def count(self, name: str) -> int:
        """`granted` (ever) or `in_flight`."""
        return int((await self._read()).get(name, 0))

    async def used(self, limit: str) -> int:
        """What all slots of the limit's window hold together, and the sum that stands beside them: they must agree."""
        kept = (await self._read())["limits"][limit]
        assert kept["used"] == sum(kept["charges"]), kept
        return int(kept["used"])

    async def warm(self, *, young: bool = False, **levels: float) -> None:
        """Full buckets, or with so much by limit; as after a long quiet spell, or `young`: opened a moment ago."""
        full = dict.fromkeys((await self._read())["limits"], 1e15) | levels
        words = [word for name, level in full.items() for word in (name, level)]
        await self._connection.command("EVAL", _WARM, 1, self._key, "young" if young else "old", *words)
