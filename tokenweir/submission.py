"""Putting requests in: each once, whatever becomes of the reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lua import load
from tokenweir.connection import Argument, Call, Connection, insist
from tokenweir.draft import Draft
from tokenweir.durability import Wait
from tokenweir.errors import PoolClosed, QueueFull, StoreUnavailable

_SUBMIT = load("request_submit")
_AT_ONCE: Final = 500
_SHORTEST_RETRY_S, _LONGEST_RETRY_S = 1.0, 60.0
# How soon work frees memory can't be told.
_FULL_RETRY_S: Final = 5.0


class Submission:
    """The way into one pool. `max_waiting`: beyond so many that wait, nothing is taken in.

    Raises:
        ConfigError: there is no such durability.
    """

    def __init__(self, connection: Connection, *, max_waiting: int, durability: str = "aof") -> None:
        self._connection = connection
        self._max_waiting = max_waiting
        self._wait = Wait(durability)

    async def send(self, drafts: Sequence[Draft], *, inbox: str = "", reply_to: str = "") -> None:
        """Queue all of `drafts`, in their order and in few round trips; all are checked before the first is queued.

        Args:
            inbox: the name of an inbox that is told of their results. reply_to: the stream that gets their deltas.

        Raises:
            RequestError, QueueFull, StoreUnavailable: for the first that met it; others may be queued.
            ConfigError: this Redis hasn't got the durability that is asked for.
        """
        await self._wait.prepare(self._connection)
        calls = [self._call(draft, inbox, reply_to) for draft in drafts]
        for first in range(0, len(calls), _AT_ONCE):
            await self._send(calls[first : first + _AT_ONCE])

    def _call(self, draft: Draft, inbox: str, reply_to: str) -> Call:
        fields = draft.fields()
        if reply_to:
            fields += ("reply_to", reply_to)
        keys = self._connection.keys
        args: list[Argument] = [self._max_waiting, inbox, *fields]
        return Call({"<status>": keys.status(draft.id), "<lane>": keys.key(draft.lane)}, args)

    async def _send(self, calls: Sequence[Call]) -> None:
        for answer, waiting, wait_ms in await insist(lambda: self._put(calls)):
            if answer == b"closed":
                raise PoolClosed(self._connection.keys.pool, retry_after_s=_LONGEST_RETRY_S)
            if answer == b"full":
                # -1: no worker has put limits in place yet, so nothing is known to come free.
                wait_s = wait_ms / 1000 if wait_ms >= 0 else _LONGEST_RETRY_S
                retry_s = min(_LONGEST_RETRY_S, max(_SHORTEST_RETRY_S, wait_s))
                raise QueueFull(
                    f"{waiting:,} requests wait, at most {self._max_waiting:,} may; try again in {retry_s:.0f} s",
                    retry_after_s=retry_s,
                )

    async def _put(self, calls: Sequence[Call]) -> list[Any]:
        """The answers of the script, once the requests are as safe as was asked for."""
        try:
            return await self._run(calls)
        except StoreUnavailable as error:
            if not error.full:
                raise
            raise QueueFull(
                "Redis is at its maxmemory and takes nothing in; workers empty it: "
                f"try again in {_FULL_RETRY_S:.0f} s, or give it more memory",
                retry_after_s=_FULL_RETRY_S,
            ) from error

    async def _run(self, calls: Sequence[Call]) -> list[Any]:
        if not self._wait.words:
            return await self._connection.run_many(_SUBMIT, calls)
        *answers, waited = await self._connection.run_many(_SUBMIT, calls, behind=self._wait.words)
        self._wait.check(waited)
        return answers
