"""Hearing of cancelled requests as it happens: one blocking read a process, on a connection of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

import structlog

from pipeline.message import Request
from tokenweir.connection import CALL_TIMEOUT_S, Connection
from tokenweir.errors import StoreUnavailable

log = structlog.get_logger()

_BLOCK_MS: Final = 2000
_READ_AT_ONCE: Final = 1000
# More than lua/request_cancel.lua keeps: an entry that waited for its turn is still known to be cancelled.
_REMEMBERED: Final = 20_000
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0


class Cancelled:
    """Which requests were cancelled lately.

    What is missed while Redis is away is read later; what is never heard costs a call whose result is dropped.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # By id, the longest known first: the last life that was cancelled, and when (ms of Redis time).
        self._lives: dict[str, tuple[int, int]] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._last = "0-0"

    def listen(self, listener: Callable[[str], None]) -> None:
        """Have `listener` called with the id of each request that is cancelled; `holds` tells which life it was."""
        self._listeners.append(listener)

    def holds(self, request: Request) -> bool:
        """Whether this life of the request is known to be cancelled, and it isn't a later one under the same id."""
        replay, at_ms = self._lives.get(request.id, (-1, 0))
        return request.replay <= replay and request.entered_ms <= at_ms

    async def run(self) -> None:
        """Listen, for ever; cancel it to end."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                await self._read()
                wait_s = _FIRST_WAIT_S
            except StoreUnavailable as error:
                # An outage is told of by those whose work it stops.
                log.debug("cancellations_not_heard", reason=str(error), effect="calls of cancelled requests go on")
                # Another server may count entries otherwise. To hear twice of the same is harmless.
                self._last = "0-0"
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    async def _read(self) -> None:
        key = self._connection.keys.key("cancelled")
        words = ("XREAD", "COUNT", _READ_AT_ONCE, "BLOCK", _BLOCK_MS, "STREAMS", key, self._last)
        reply: Any = await self._connection.command(*words, timeout_s=CALL_TIMEOUT_S + _BLOCK_MS / 1000)
        for _, entries in reply or ():
            for entry, fields in entries:
                self._last = entry.decode()
                self._hear(int(self._last.partition("-")[0]), fields or {})

    def _hear(self, at_ms: int, fields: dict[bytes, bytes]) -> None:
        request_id, replay = fields.get(b"id", b"").decode(errors="replace"), fields.get(b"replay", b"")
        if not request_id or not replay.isdigit():
            return  # not ours
        self._lives.pop(request_id, None)
        self._lives[request_id] = (int(replay), at_ms)
        while len(self._lives) > _REMEMBERED:
            del self._lives[next(iter(self._lives))]
        for listener in self._listeners:
            listener(request_id)
