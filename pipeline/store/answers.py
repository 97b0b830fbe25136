"""Reading `responses` entry by entry, alone or as one of a consumer group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from lua import load
from tokenweir.connection import CALL_TIMEOUT_S, Argument, Connection
from tokenweir.errors import StoreUnavailable

_PRUNE = load("consumers_prune")
_BEGINNING = "0-0"
_HOUR_MS = 3_600_000


class Answer(NamedTuple):
    """An entry of `responses`."""

    entry: str
    fields: dict[bytes, bytes]


class Answers:
    """The results of one pool."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._key = connection.keys.key("responses")

    async def after(self, entry: str, *, count: int, block_ms: int | None) -> list[Answer]:
        """Results behind `entry`; waits up to `block_ms` for the first one, None doesn't wait."""
        return await self._read(("XREAD", "COUNT", count), entry, block_ms)

    async def last(self) -> str:
        """The newest entry; what comes later is new."""
        found = await self._connection.command("XREVRANGE", self._key, "+", "-", "COUNT", 1)
        return found[0][0].decode() if found else _BEGINNING

    async def trimmed_behind(self, entry: str) -> bool:
        """Whether results that followed `entry` may have been trimmed away before they were read."""
        if entry == _BEGINNING:
            return False
        first = await self._connection.command("XRANGE", self._key, "-", "+", "COUNT", 1)
        here = await self._connection.command("XRANGE", self._key, entry, entry)
        return bool(first) and not here and _order(first[0][0].decode()) > _order(entry)

    async def join(self, group: str) -> None:
        """Make the consumer group, from the first result on, unless it is there."""
        try:
            await self._connection.command("XGROUP", "CREATE", self._key, group, "0", "MKSTREAM")
        except StoreUnavailable as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def take(self, group: str, consumer: str, *, count: int, block_ms: int | None) -> list[Answer]:
        """Results that nobody of the group has had; they stay pending until `acknowledge`."""
        return await self._read(("XREADGROUP", "GROUP", group, consumer, "COUNT", count), ">", block_ms)

    async def retake(self, group: str, consumer: str, *, idle_ms: int, count: int) -> list[Answer]:
        """Results that somebody of the group took and didn't acknowledge for `idle_ms`."""
        words: list[Argument] = ["XAUTOCLAIM", self._key, group, consumer, idle_ms, _BEGINNING, "COUNT", count]
        reply = await self._connection.command(*words)
        return [Answer(entry.decode(), fields) for entry, fields in reply[1] if fields]

    async def acknowledge(self, group: str, entries: Sequence[str]) -> None:
        """These are dealt with."""
        await self._connection.command("XACK", self._key, group, *entries)

    async def leave(self, group: str, consumer: str) -> None:
        """Take the consumer out of the group, unless it still holds results."""
        await self._connection.run(_PRUNE, [group, consumer, _HOUR_MS], bind={"<source>": self._key})

    async def _read(self, words: Sequence[Argument], start: str, block_ms: int | None) -> list[Answer]:
        wait: Sequence[Argument] = () if block_ms is None else ("BLOCK", block_ms)
        reply = await self._connection.command(
            *words, *wait, "STREAMS", self._key, start, timeout_s=CALL_TIMEOUT_S + (block_ms or 0) / 1000
        )
        streams = cast("list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]", reply or [])
        return [Answer(entry.decode(), fields) for _, found in streams for entry, fields in found]


def _order(entry: str) -> tuple[int, int]:
    """Entry ids in the order in which they were written."""
    at_ms, _, number = entry.partition("-")
    return int(at_ms), int(number or 0)
