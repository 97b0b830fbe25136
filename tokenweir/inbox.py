"""One stream by which a whole process learns of its results and deltas, however many of them it waits for.

An inbox owns one connection and one task, its reader. Redis's side of the bargain is `lua/request_watch.lua`: it tells
a result at once, or has it delivered here. Deliveries are a convenience and may be lost (a flush, a trimmed inbox, a
fail-over), so the reader looks again at what is still waited for.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import msgspec

from lua import load
from tokenweir.connection import Argument, Call, Connection
from tokenweir.errors import RequestError, ResultTimeout, StoreUnavailable, TokenweirError
from tokenweir.keys import Keys
from tokenweir.wire import Event, Result, event_from_fields

log = logging.getLogger(__name__)

_WATCH = load("request_watch")
# How long an outage may last before those who wait are told.
PATIENCE_S: Final = 10.0
_BLOCK_S: Final = 2.0
# An event is lost seldom, and then nobody should hang for long; at this rate looking costs next to nothing.
_LOOK_EVERY_S: Final = 5.0
_MOST_LOOKED_AT: Final = 500
_READ_AT_ONCE: Final = 100
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0
# Of a status that only somebody who waits has made; each look makes it anew.
_UNKNOWN_TTL_S: Final = 3600
# What an event left behind after the end may stay.
_CLOSED_TTL_S: Final = 60
_CLOSE_CALL_S: Final = 2.0


class Listener:
    """What comes for one request, to one of those who wait for it. Stops listening at the end of the `with` block."""

    def __init__(self, inbox: Inbox, request_id: str, *, deltas: bool) -> None:
        self.request_id = request_id
        self.deltas = deltas
        self.look_at = 0.0  # monotonic; set by the inbox
        self.carried = False  # whether some entry was seen to carry the id
        self._inbox = inbox
        self._arrived: asyncio.Queue[Event | TokenweirError] = asyncio.Queue()

    def __enter__(self) -> Self:
        self._inbox.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._inbox.remove(self)

    def put(self, event: Event | TokenweirError) -> None:
        """Hand over an event, or the reason why none will come."""
        self._arrived.put_nowait(event)

    async def next(self, timeout_s: float | None) -> Event:
        """The next event; waits for it as long as it takes, or `timeout_s`.

        Raises:
            ResultTimeout: none within that time.
            StoreUnavailable: Redis has been away for longer than `PATIENCE_S`.
            RequestError: Redis doesn't know the request any more.
        """
        try:
            async with asyncio.timeout(timeout_s):
                event = await self._arrived.get()
        except TimeoutError as error:
            raise ResultTimeout(f"no result of request {self.request_id} within {timeout_s:g} s; it goes on") from error
        if isinstance(event, TokenweirError):
            raise event
        return event


class Inbox:
    """Events of this process's requests. Make it inside the running event loop; `aclose` ends its reader."""

    def __init__(self, keys: Keys, open_connection: Callable[[], Connection]) -> None:
        self.name = secrets.token_hex(8)
        self.key = keys.inbox(self.name)
        self._keys = keys
        self._open = open_connection
        self._listeners: dict[str, list[Listener]] = {}
        self._wanted = asyncio.Event()  # somebody listens, or it is time to end
        self._closing = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        # The rest belongs to the reader.
        self._last = "0-0"
        self._served_at = 0.0  # monotonic time of the last reply
        self._look_next = 0.0

    def listen(self, request_id: str, *, deltas: bool = False) -> Listener:
        """What comes for `request_id` inside the `with` block; with `deltas`, pieces of the answer too."""
        return Listener(self, request_id, deltas=deltas)

    def add(self, listener: Listener) -> None:
        """Start listening; the first one starts the reader."""
        if self._closing.is_set():
            raise RuntimeError("the client is closed")
        if self._reader is None:
            self._served_at = time.monotonic()  # the reader's first turn is measured from here
            self._connection = self._open()
            self._reader = asyncio.create_task(self._run(self._connection), name="tokenweir-inbox")
            self._reader.add_done_callback(self._ended)
        listener.look_at = time.monotonic() + _about(_LOOK_EVERY_S)
        self._listeners.setdefault(listener.request_id, []).append(listener)
        self._wanted.set()

    def remove(self, listener: Listener) -> None:
        """Stop listening."""
        others = self._listeners.get(listener.request_id, [])
        if listener in others:
            others.remove(listener)
        if not others:
            self._listeners.pop(listener.request_id, None)
        if not self._listeners and not self._closing.is_set():
            self._wanted.clear()

    async def look(self, request_ids: Sequence[str], connection: Connection) -> None:
        """Tell those who listen what is known by now, and have what comes later delivered here.

        Raises:
            StoreUnavailable: Redis didn't answer.
        """
        calls = [Call({"<status>": self._keys.status(each)}, (self.name, _UNKNOWN_TTL_S, 1)) for each in request_ids]
        for request_id, reply in zip(request_ids, await connection.run_many(_WATCH, calls), strict=True):
            listeners = self._listeners.get(request_id, ())
            if reply == b"unknown":
                # An id that nobody has carried yet may still come; one that was carried can't become unknown.
                gone = [listener for listener in listeners if listener.carried]
                _tell(gone, _forgotten(request_id))
            elif reply:
                _tell(listeners, _done(request_id, reply))
            else:
                for listener in listeners:
                    listener.carried = True

    async def aclose(self, control: Connection) -> None:
        """End the reader and delete the stream; those who still wait get an error. Takes 5 s at most."""
        self._closing.set()
        self._wanted.set()
        reader, self._reader = self._reader, None
        if reader is None or self._connection is None:
            return
        _tell(self._everybody(), TokenweirError("the client was closed while something waited for a result"))
        try:
            # An event of our own ends the read that is under way: no command is cut off for it.
            wake = (("XADD", self.key, "*", "kind", "wake"), ("EXPIRE", self.key, _CLOSED_TTL_S))
            with suppress(StoreUnavailable):
                await control.commands(wake, timeout_s=_CLOSE_CALL_S)
            await asyncio.wait([reader], timeout=_BLOCK_S + 1)
        finally:
            reader.cancel()
        await asyncio.wait([reader])
        with suppress(StoreUnavailable):
            await control.command("DEL", self.key, timeout_s=_CLOSE_CALL_S)
        await self._connection.aclose()

    async def _run(self, connection: Connection) -> None:
        """Read while somebody listens, until `aclose`. Outages are waited out with jitter."""
        wait_s = _FIRST_WAIT_S
        while not self._closing.is_set():
            if not self._wanted.is_set():
                await self._wanted.wait()
                self._served_at = time.monotonic()
                continue
            try:
                await self._turn(connection, healthy=wait_s == _FIRST_WAIT_S)
            except StoreUnavailable as error:
                if time.monotonic() - self._served_at >= PATIENCE_S:
                    _tell(self._everybody(), error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s * random.uniform(0.5, 1.0)):
                        await self._closing.wait()
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
            else:
                self._served_at = time.monotonic()
                if wait_s > _FIRST_WAIT_S:
                    self._look_at_all_soon()
                wait_s = _FIRST_WAIT_S

    async def _turn(self, connection: Connection, *, healthy: bool) -> None:
        """Drop what was read last, read on, and now and then look again at what is waited for."""
        left_s = max(1.0, self._served_at + PATIENCE_S - time.monotonic())
        block_ms = round(_BLOCK_S * 1000) if healthy else 1
        words: tuple[Sequence[Argument], ...] = (
            ("XTRIM", self.key, "MINID", _after(self._last)),
            ("XREAD", "COUNT", _READ_AT_ONCE, "BLOCK", block_ms, "STREAMS", self.key, self._last),
        )
        _, streams = await connection.commands(words, timeout_s=left_s)
        for _, entries in streams:
            for entry, fields in entries:
                self._last = entry.decode()
                self._dispatch(fields)
        now = time.monotonic()
        if now >= self._look_next:
            self._look_next = now + 1
            due = [each for each, those in self._listeners.items() if any(one.look_at <= now for one in those)]
            due = due[:_MOST_LOOKED_AT]
            await self.look(due, connection)
            for listener in self._everybody(due):
                listener.look_at = now + _about(_LOOK_EVERY_S)

    def _dispatch(self, fields: dict[bytes, bytes]) -> None:
        request_id = fields.get(b"id", b"").decode("ascii", "replace")
        listeners = self._listeners.get(request_id)
        if not listeners:
            return  # nobody waits any more
        try:
            event = event_from_fields(fields)
        except msgspec.ValidationError as error:
            log.warning("inbox event of request %s skipped: %s", request_id, error)
            return
        if event.kind == "done" and event.result is None:
            return
        _tell((one for one in listeners if one.deltas or event.kind == "done"), event)

    def _look_at_all_soon(self) -> None:
        """Events of an outage may be lost. Many processes come back at once, so each spreads its looks."""
        now = time.monotonic()
        for listener in self._everybody():
            listener.look_at = now + random.uniform(0, 1)

    def _everybody(self, request_ids: Iterable[str] | None = None) -> list[Listener]:
        chosen = self._listeners if request_ids is None else request_ids
        return [listener for each in chosen for listener in self._listeners.get(each, ())]

    def _ended(self, reader: asyncio.Task[None]) -> None:
        """A reader that fails must not leave anybody waiting."""
        error = None if reader.cancelled() else reader.exception()
        if error is not None:
            log.error("the inbox reader failed", exc_info=error)
            _tell(self._everybody(), TokenweirError(f"the inbox reader failed: {type(error).__name__}: {error}"))


def _tell(listeners: Iterable[Listener], event: Event | TokenweirError) -> None:
    for listener in listeners:
        listener.put(event)


def _done(request_id: str, raw: bytes) -> Event | RequestError:
    try:
        result = msgspec.json.decode(raw, type=Result)
    except msgspec.DecodeError as error:
        return RequestError(f"the result of request {request_id} isn't readable here: {error}", code="internal")
    return Event(id=request_id, kind="done", attempt=result.attempt, result=result)


def _forgotten(request_id: str) -> RequestError:
    return RequestError(
        f"Redis doesn't know request {request_id} any more (emptied, or its result has expired); submit it again",
        code="internal",
    )


def _about(seconds: float) -> float:
    return seconds * random.uniform(0.8, 1.2)


def _after(entry: str) -> str:
    """The lowest entry id above `entry`."""
    at_ms, _, number = entry.partition("-")
    return f"{at_ms}-{int(number) + 1}"
