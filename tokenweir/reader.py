"""Reading `responses`: by a consumer group, which shares the results out among processes, or plainly, all of them.

Each reading has a connection of its own, since it blocks. It never holds more results than the one in the loop's
body, so that nothing lies unseen in a process that has stopped asking.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import msgspec

from lua import load
from tokenweir.connection import Argument, Connection
from tokenweir.errors import StoreUnavailable
from tokenweir.wire import Result, result_from_fields

log = logging.getLogger(__name__)

_PRUNE = load("consumers_prune")
_STREAM: Final = "responses"
_BLOCK_MS: Final = 2000
_READ_AT_ONCE: Final = 100
_CLAIMED_AT_ONCE: Final = 10
# Consumers that hold nothing and haven't asked for a day are gone for good.
_CONSUMER_GONE_MS: Final = 86_400_000
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0
# How long an outage may last before the caller is told.
_PATIENCE_S: Final = 10.0

Fields = dict[bytes, bytes]


class _Patience:
    """Waits between attempts, and gives up when an outage has lasted too long."""

    def __init__(self) -> None:
        self._wait_s = _FIRST_WAIT_S
        self._served_at = time.monotonic()

    @property
    def left_s(self) -> float:
        """How long the next attempt may take."""
        return max(_BLOCK_MS / 1000 + 1, self._served_at + _PATIENCE_S - time.monotonic())

    def served(self) -> None:
        """Note that Redis answers, or that nobody has asked it meanwhile."""
        self._wait_s = _FIRST_WAIT_S
        self._served_at = time.monotonic()

    async def wait(self, error: StoreUnavailable) -> None:
        """Wait before the next attempt, or raise `error`."""
        if time.monotonic() - self._served_at >= _PATIENCE_S:
            raise error
        await asyncio.sleep(self._wait_s * random.uniform(0.5, 1.0))
        self._wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S)


async def tail(connection: Connection, *, start: str) -> AsyncGenerator[Result, None]:
    """Every result from `start` on (`0` = the oldest kept, `$` = what comes from now on, or an entry id).

    Raises:
        StoreUnavailable: an outage of more than 10 s.
    """
    stream, patience, last = connection.keys.key(_STREAM), _Patience(), start
    while True:
        try:
            if last == "$":
                # Resolved once: what comes between two reads must not be missed.
                newest = await connection.command("XREVRANGE", stream, "+", "-", "COUNT", 1)
                last = newest[0][0].decode() if newest else "0-0"
            reply = await connection.command(
                "XREAD",
                *("COUNT", _READ_AT_ONCE, "BLOCK", _BLOCK_MS, "STREAMS", stream, last),
                timeout_s=patience.left_s,
            )
        except StoreUnavailable as error:
            await patience.wait(error)
            continue
        for entry, fields in _entries(reply):
            last = entry.decode()
            result = _readable(entry, fields)
            if result is not None:
                yield result
        patience.served()


class GroupReader:
    """One consumer of one group on `responses`. At least once: a result stays the group's until it was acknowledged."""

    def __init__(
        self, connection: Connection, *, group: str, consumer: str | None, start: str, takeover_s: float
    ) -> None:
        self._connection = connection
        self._stream = connection.keys.key(_STREAM)
        self._group = group
        self._consumer = consumer or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._start = start
        self._takeover_s = takeover_s
        self._grouped = False
        self._own = True  # what is pending under our own name comes before anything new
        self._cursor = "0-0"
        self._claim_at = 0.0  # monotonic

    async def results(self) -> AsyncGenerator[Result, None]:
        """Results as they come, each acknowledged when the next one is asked for.

        Raises:
            StoreUnavailable: an outage of more than 10 s.
        """
        patience, done = _Patience(), b""
        while True:
            try:
                await self._prepare()
                entries = await self._next(done, timeout_s=patience.left_s)
            except StoreUnavailable as error:
                if "NOGROUP" in str(error):
                    # Emptied or removed: what has come since is new to everybody.
                    self._grouped, self._start = False, "0"
                # What was handed out in a reply that we never got is pending under our name.
                self._own = True
                await patience.wait(error)
                continue
            patience.served()
            done = b""
            for entry, fields in entries:
                done = entry
                result = _readable(entry, fields)
                if result is not None:
                    yield result
                    patience.served()

    async def _prepare(self) -> None:
        """See to it that the group exists, and take over what others have left lying."""
        now = time.monotonic()
        if not self._grouped:
            try:
                words = ("XGROUP", "CREATE", self._stream, self._group, self._start, "MKSTREAM")
                await self._connection.command(*words)
            except StoreUnavailable as error:
                if "BUSYGROUP" not in str(error):
                    raise
            self._grouped = True
        if now >= self._claim_at:
            idle_ms = max(1, round(self._takeover_s * 1000))
            words = ("XAUTOCLAIM", self._stream, self._group, self._consumer, str(idle_ms), self._cursor)
            reply = await self._connection.command(*words, "COUNT", _CLAIMED_AT_ONCE)
            self._cursor = reply[0].decode()
            self._own = self._own or bool(reply[1])
            if reply[1] == [] and self._cursor == "0-0":
                await self._connection.run(
                    _PRUNE, (self._group, "", _CONSUMER_GONE_MS), bind={"<source>": self._stream}
                )
            more = self._cursor != "0-0"
            self._claim_at = now + (0 if more else self._takeover_s / 4 * random.uniform(0.75, 1.25))

    async def _next(self, done: bytes, *, timeout_s: float) -> list[tuple[bytes, Fields]]:
        """Acknowledge `done` and take the next entry, in one round trip. Both are safe to repeat."""
        words: list[Sequence[Argument]] = [("XACK", self._stream, self._group, done)] if done else []
        read = ("XREADGROUP", "GROUP", self._group, self._consumer, "COUNT", 1)
        if self._own:
            words.append((*read, "STREAMS", self._stream, "0"))
        else:
            words.append((*read, "BLOCK", _BLOCK_MS, "STREAMS", self._stream, ">"))
        entries = _entries((await self._connection.commands(words, timeout_s=timeout_s))[-1])
        self._own = self._own and bool(entries)
        return entries


def _entries(reply: Any) -> list[tuple[bytes, Fields]]:
    return [(entry, fields or {}) for _, found in reply or () for entry, fields in found]


def _readable(entry: bytes, fields: Fields) -> Result | None:
    """The result in an entry; None, with a warning, when it isn't ours or was trimmed away."""
    try:
        return result_from_fields(fields)
    except msgspec.ValidationError as error:
        log.warning("entry %s of %s skipped: %s", entry.decode(), _STREAM, error)
        return None
