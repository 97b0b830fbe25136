"""Connections to the primary of one pool, and round trips over them that find it again when it has moved.

Calls go over redis-py's connections, but not through its client: pool, retries, events and telemetry of a call cost
80 us of CPU there, four times what the call itself does, and a request makes seven.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from tokenweir.errors import StoreUnavailable
from tokenweir.places import Pool, hang_up
from tokenweir.urls import Address
from tokenweir.within import Within

log = logging.getLogger(__name__)

Argument = bytes | str | int | float

# Nodes that send us to each other know no better; that is waited out like any outage.
_MOST_HOPS: Final = 4
_SCRIPTS: Final = ("EVALSHA", "EVAL")
_LOOK_EVERY_S: Final = 1.0
# They speak of what their own connection wrote last.
_WAITS: Final = ("WAIT", "WAITAOF")


class Links:
    """At most so many connections as the pool allows; callers beyond wait.

    Attributes:
        opened: connections so far: who knows something of one can tell that it is another now.
        clustered: whether the servers are nodes of a Cluster.
    """

    def __init__(self, pool: Pool, root: str) -> None:
        self.opened = 0
        self.clustered = pool.named.kind == "cluster"
        self._watched = pool.named.kind == "sentinel"
        self._look: asyncio.Task[None] | None = None  # whether the primary has changed, while calls go on
        self._look_next = 0.0  # monotonic
        self._pool = pool
        self._places = pool.places(root)
        # Callers queue here and never in redis-py's pool: on Python 3.11 its condition variable forgets
        # a wake-up when the caller it woke is cancelled, and the others would wait for their timeouts.
        self._turns = asyncio.Semaphore(pool.max_connections)
        self._open_ones: dict[AbstractConnection, int] = {}  # with their terms
        self._idle: list[AbstractConnection] = []  # those that no call holds, the last used one first
        self._term = 0  # counts changes of place: connections of an earlier term aren't used again
        self._closed = False

    @property
    def place(self) -> Address | None:
        """Where the primary is, as far as is known."""
        return self._places.now

    async def round_trip(self, many: Sequence[Sequence[Argument]], timeout_s: float) -> list[Any]:
        """Send all in one write; their replies in order, an error in the place of its reply."""
        if self._closed:  # or new connections would be opened, which nobody closes
            raise RuntimeError("used after it was closed")
        packed = b"".join(pack_command(tuple(words)) for words in many)  # type: ignore[arg-type]  # its stub names one word
        if self._watched:
            self._look_now_and_then()
        begun = self._term
        try:
            with Within(timeout_s):
                async with self._turns:
                    link = self._idle.pop() if self._idle else self._open(self._places.now or await self._places.find())
                    term = self._term
                    replies = await self._exchange(link, packed, len(many))
                    if self._watched and term != self._term:
                        raise ConnectionError("the primary has changed meanwhile")
                    for reply in replies:
                        if isinstance(reply, ResponseError):
                            return await self._follow(many, replies, term)
                    return replies
        except TimeoutError as error:
            # Silent for so long, it may be dead and have a successor. Or only its connections are: then the others that
            # were open by then are as well, and would cost as much each. Unless another call has found that out before.
            if begun == self._term:
                self._places.lost()
                await self._turn()
            raise StoreUnavailable(f"no reply from Redis within {timeout_s:g} s") from error
        except (OSError, RedisError) as error:
            raise StoreUnavailable(f"{many[0][0]!s}: {type(error).__name__}: {error}") from error

    async def _follow(self, many: Sequence[Sequence[Argument]], replies: list[Any], term: int) -> list[Any]:
        """Do elsewhere what was refused for being in the wrong place: it wasn't run here. Other errors stay."""
        for _ in range(_MOST_HOPS):
            refused = [index for index, reply in enumerate(replies) if isinstance(reply, AskError)]
            moved = [index for index in refused if isinstance(replies[index], MovedError)]
            if moved and self._places.moved(self._address(replies[moved[-1]])):
                term = await self._turn()
                await self._again(many, replies, moved)
            elif asked := [index for index in refused if index not in moved and many[index][0] not in _SCRIPTS]:
                # Not scripts: they would take a status that is still to follow the others for one that isn't there.
                await self._again(many, replies, asked, ask=self._address(replies[asked[0]]))
            else:
                break
        if term == self._term and any(map(_misplaced, replies)):
            self._places.lost()
            await self._turn()
        return replies

    async def _again(
        self,
        many: Sequence[Sequence[Argument]],
        replies: list[Any],
        chosen: Sequence[int],
        *,
        ask: Address | None = None,
    ) -> None:
        """Send these once more, to where the primary is now, or to the node to `ask` this time only."""
        # What a wait said of another connection says nothing of these.
        wanted = set(chosen)
        chosen = [index for index, words in enumerate(many) if index in wanted or words[0] in _WAITS]
        words = [each for index in chosen for each in ([("ASKING",), many[index]] if ask else [many[index]])]
        packed = b"".join(pack_command(tuple(each)) for each in words)  # type: ignore[arg-type]
        link = self._open(ask or self._places.now or await self._places.find(), once=ask is not None)
        again = await self._exchange(link, packed, len(words))
        for index, reply in zip(chosen, again[1::2] if ask else again, strict=True):
            replies[index] = reply

    def _address(self, error: AskError) -> Address:
        """Where it sends us; a node that doesn't know its own name means itself."""
        host, port = error.node_addr
        here = self._places.now
        return Address(host if host not in ("", "?") or here is None else here.host, int(port))

    async def _exchange(self, link: AbstractConnection, packed: bytes, count: int) -> list[Any]:
        whole = False
        try:
            await link.send_packed_command(packed, check_health=False)  # connects first where it has to
            replies: list[Any] = []
            while len(replies) < count:
                try:
                    replies.append(await link.read_response())
                except ResponseError as error:  # a value here, since replies to others may follow it
                    replies.append(error)
            whole = True
            return replies
        except (OSError, RedisError):
            # What broke one connection has mostly broken all: don't let each of them fail a call of its own. Unless
            # another call has found that out before.
            if self._open_ones.get(link) == self._term:
                self._places.lost()
                await self._turn()
            raise
        finally:
            # Cut off in the middle, a connection would give the next caller this one's reply.
            if whole and not self._closed and self._open_ones.get(link) == self._term:
                self._idle.append(link)
            else:
                await self._drop(link)

    def _open(self, address: Address, *, once: bool = False) -> AbstractConnection:
        link = self._pool.link_to(address)
        self._open_ones[link] = -1 if once else self._term
        self.opened += 1
        return link

    def _look_now_and_then(self) -> None:
        """A primary that gives way unhurt isn't told for ten seconds: what it takes until then is lost with it."""
        if time.monotonic() >= self._look_next and self._look is None and self._places.now is not None:
            self._look_next = time.monotonic() + _LOOK_EVERY_S * random.uniform(0.8, 1.2)
            self._look = asyncio.create_task(self._look_whether_it_changed(self._places.now))

    async def _look_whether_it_changed(self, before: Address) -> None:
        try:
            if await self._places.find() != before:
                await self._turn()
        except (OSError, RedisError) as error:
            log.debug("no Sentinel answers: %s", error)  # the primary may serve all the same
        finally:
            self._look = None

    async def _turn(self) -> int:
        """Begin a new term: from now on only new connections are used."""
        self._term += 1
        while self._idle:
            await self._drop(self._idle.pop())
        return self._term

    async def _drop(self, link: AbstractConnection) -> None:
        self._open_ones.pop(link, None)
        await hang_up(link)

    async def aclose(self) -> None:
        """Close all; a call after that is a RuntimeError. Harmless twice."""
        self._closed = True
        if self._look:
            self._look.cancel()
            await asyncio.wait([self._look])
        self._idle.clear()
        async with AsyncExitStack() as stack:
            for link in tuple(self._open_ones):
                stack.push_async_callback(self._drop, link)
        await asyncio.sleep(0)  # their sockets are closed by the loop, which may end with our caller


def _misplaced(reply: Any) -> bool:
    """Whether it says that this isn't the primary, or no more, or that the Cluster is looking for one."""
    if isinstance(reply, ReadOnlyError | ClusterDownError):
        return True
    # A primary that has given way lost its replica to its successor.
    return isinstance(reply, ResponseError) and str(reply).startswith(("UNBLOCKED force", "NOREPLICAS"))
