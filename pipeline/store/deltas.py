"""Token deltas on their way to whoever asked: written together, never waited for by a stage.

Pieces that come while a write is under way go out with the next one, so a busy worker writes large
batches and an idle one writes at once. Deltas are a preview: on an outage, and at maxmemory, they are dropped, and the
terminal result carries the whole text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from pipeline.message import Request
from tokenweir.connection import Argument, Connection
from tokenweir.errors import StoreUnavailable

log = structlog.get_logger()

_KEPT, _TTL_S, _MOST_HELD = 10_000, 3600, 20_000
# After Redis refused some, the next ones would be refused as well: don't try for each of them.
_REFUSED_S = 1.0


class Deltas:
    """Collects pieces of answers and writes them to `reply:<id>` or the client's inbox."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._refused_until = 0.0  # monotonic; what comes before is dropped
        self._held: list[tuple[str, Sequence[Argument]]] = []  # appended by stages, emptied by `run`
        self._filled = asyncio.Event()

    def emitter(self, request: Request) -> Callable[[str], None]:
        """The function that sends a piece of this request's answer."""
        keys = self._connection.keys
        stream = keys.inbox(request.reply_to) if request.reply_to else keys.reply(request.id)
        index = 0

        def emit(text: str) -> None:
            nonlocal index
            if len(self._held) < _MOST_HELD and time.monotonic() >= self._refused_until:
                fields = ("kind", "delta", "id", request.id, "attempt", request.attempt, "index", index, "text", text)
                self._held.append((stream, fields))
                self._filled.set()
            index += 1

        return emit

    async def run(self) -> None:
        """Write what is held, for ever; cancel it to end."""
        while True:
            await self._filled.wait()
            await self.flush()

    async def flush(self) -> None:
        """Write what is held now."""
        held, self._held = self._held, []
        self._filled.clear()
        if not held:
            return
        words: list[Sequence[Argument]] = [("XADD", key, "MAXLEN", "~", _KEPT, "*", *fields) for key, fields in held]
        words += [self._expiry(key) for key in {key for key, _ in held}]
        try:
            await self._connection.commands(words)
        except StoreUnavailable as error:
            self._refused_until = time.monotonic() + _REFUSED_S
            log.debug("deltas_dropped", count=len(held), reason=str(error))

    def _expiry(self, key: str) -> Sequence[Argument]:
        """An inbox lives as long as anything comes. A reply's end comes with its result, which may be there already."""
        words = ("EXPIRE", key, _TTL_S)
        return words if self._connection.keys.inbox_name(key) else (*words, "NX")
