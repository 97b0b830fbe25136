"""What stands in Redis about a budget, read by hand, and budgets made ready for a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenweir import Limiter
from tokenweir.connection import Argument, Connection

# A window so long that nothing leaves it while a test runs, and next to nothing is refilled.
LIMITS: dict[str, Any] = {"rpm": 1_000_000, "tpm": 10_000_000, "window_s": 100_000, "send_within_s": 60}
Open = Callable[..., Limiter]


class Books:
    """The budget of one deployment as it stands in Redis."""

    def __init__(self, connection: Connection, deployment: str = "primary") -> None:
        self._connection = connection
        self._key = connection.keys.key(f"budget:{deployment}")

    async def field(self, name: str) -> float:
        text = await self._connection.command("HGET", self._key, name)
        return float(text or 0)

    async def used(self, limit: str) -> int:
        """What all slots of the limit's window hold together, and the sum that stands beside them: they must agree."""
        text = await self._connection.command("HGET", self._key, f"{limit}.slots")
        _slot_us, _first, _last, charge, used, past = text.decode().split(":")
        assert int(used) == int(charge) + sum(map(int, past.split())), text
        return int(used)

    async def write(self, *pairs: Argument) -> None:
        await self._connection.command("HSET", self._key, *pairs)

    async def warm(self, *, tokens: float = 1e15, requests: float = 1e15) -> None:
        """As after a long quiet spell, with so much in the buckets (at most what they hold)."""
        await self.write("born", 1, "tpm.level", tokens, "rpm.level", requests)
