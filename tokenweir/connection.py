"""The one way to Redis, for the client and the engine alike.

Four defaults of redis-py 8 are dealt with here, and nowhere else:

1. It repeats every command up to ten times, so one lost reply makes two XADDs: retries are off, and only
   scripts that are safe twice are repeated, by us, in the open.
2. Its socket timeout of 5 s breaks longer blocking reads: it is off; `Within` guards each call.
3. On Python 3.11 that timeout can swallow a task's cancellation: same cure.
4. A read that is cancelled leaves entries pending and unseen: readers are never cancelled to stop, and
   what is pending but not in hand is taken up again (pipeline.loop).

Where the primary is, `places` tells, and `links` goes there.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from redis.asyncio import Redis
from redis.exceptions import AskError, MovedError, NoScriptError

from lua import Script
from tokenweir.errors import StoreUnavailable
from tokenweir.keys import Keys
from tokenweir.links import Argument, Links
from tokenweir.places import Pool, connect

__all__ = ["CALL_TIMEOUT_S", "Argument", "Call", "Connection", "connect", "insist"]

T = TypeVar("T")

# Longer than any script of ours takes, shorter than a lease: a silent peer must not hold a worker up.
CALL_TIMEOUT_S = 10.0
# An outage that a caller should not notice: a lost connection, a short fail-over.
_ATTEMPTS, _FIRST_WAIT_S, _NO_REPEAT_AFTER_S = 3, 0.1, 5.0


class Call(NamedTuple):
    """One run of a script among many: keys for its `<name>` keys, and its arguments."""

    bind: Mapping[str, str]
    args: Sequence[Argument]


class Connection:
    """Commands and scripts on one pool's keys; every failure is a `StoreUnavailable`."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis = redis
        self.keys = keys
        self.links = Links(cast("Pool", redis.connection_pool), keys.root)

    async def run(
        self,
        script: Script,
        args: Iterable[Argument] = (),
        *,
        bind: Mapping[str, str] | None = None,
        rest: Sequence[str] = (),
        touches: Iterable[str] = (),
    ) -> Any:
        """Run `script` and return its reply.

        Args:
            bind: full keys for the script's `<name>` keys.
            rest: names (without the pool's prefix) of the keys behind its `*`.
            touches: statuses, then other keys, that it makes from its arguments. A Cluster is told of them: while
                the pool's slot moves, it then refuses to begin, where the script would break off in the middle.

        Raises:
            StoreUnavailable: no reply, or an error: whether it ran is unknown.
        """
        names = self.names(script, bind=bind, rest=rest)
        return await self.run_on((*names, *touches) if self.links.clustered else names, script, args)

    def names(
        self, script: Script, *, bind: Mapping[str, str] | None = None, rest: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """The keys of a run of `script`, for `run_on`: who asks the same ones again and again keeps them."""
        key = self.keys.key
        return (*self._names(script, bind or {}), *[key(name) for name in rest])

    async def run_on(self, names: tuple[str, ...], script: Script, args: Iterable[Argument] = ()) -> Any:
        """Run `script` on these keys and return its reply.

        Raises:
            StoreUnavailable: no reply, or an error: whether it ran is unknown.
        """
        tail = (len(names), *names, *args)
        (reply,) = await self.links.round_trip([("EVALSHA", script.sha, *tail)], CALL_TIMEOUT_S)
        if isinstance(reply, NoScriptError):
            # Emptied by a restart, a flush or a fail-over: send the text; that loads it as well.
            (reply,) = await self.links.round_trip([("EVAL", script.text, *tail)], CALL_TIMEOUT_S)
        return _whole(reply, script.name)

    async def run_many(self, script: Script, calls: Sequence[Call], *, behind: Sequence[Argument] = ()) -> list[Any]:
        """Run `script` once for each of `calls`, in their order and in one round trip; returns the replies.

        Args:
            behind: a command that follows them on their connection; its reply is the last one.

        Raises:
            StoreUnavailable: no reply, or an error in one of them: which ones ran is unknown.
        """
        if not calls:
            return []
        many: list[Sequence[Argument]] = []
        for call in calls:
            names = self._names(script, call.bind)
            many.append(("EVALSHA", script.sha, len(names), *names, *call.args))
        if behind:
            many.append(behind)
        replies = await self.links.round_trip(many, CALL_TIMEOUT_S)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            # Emptied meanwhile: what was refused for it hasn't run, all else has and must not run again.
            await self.command("SCRIPT", "LOAD", script.text)
            missing = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if behind:
                missing.append(len(many) - 1)
            again = await self.links.round_trip([many[index] for index in missing], CALL_TIMEOUT_S)
            for index, reply in zip(missing, again, strict=True):
                replies[index] = reply
        said = [_whole(reply, script.name) for reply in replies[: len(calls)]]
        return [*said, _whole(replies[-1], str(behind[0]))] if behind else said

    async def command(self, *words: Argument, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Run one command and return its reply.

        Raises:
            StoreUnavailable: no reply within `timeout_s`, or an error.
        """
        return (await self.commands([words], timeout_s=timeout_s))[0]

    async def commands(self, many: Sequence[Sequence[Argument]], *, timeout_s: float = CALL_TIMEOUT_S) -> list[Any]:
        """Run independent commands in one round trip.

        Raises:
            StoreUnavailable: no reply within `timeout_s`, or an error in one of them.
        """
        replies = await self.links.round_trip(many, timeout_s)
        return [self._plain(words, reply) for words, reply in zip(many, replies, strict=True)]

    def _names(self, script: Script, bind: Mapping[str, str]) -> list[str]:
        # A `<name>` that nobody bound is a mistake of ours, and must not become a key of that name.
        return [bind[name] if name.startswith("<") else self.keys.key(name) for name in script.keys]

    def _plain(self, words: Sequence[Argument], reply: Any) -> Any:
        """A command's reply in the library's usual form, whichever protocol is spoken."""
        callback = self.redis.response_callbacks.get(str(words[0]))
        reply = _whole(reply, str(words[0]))
        return callback(reply) if callback else reply

    async def aclose(self) -> None:
        """Close all connections; a call after that is a RuntimeError. Harmless twice."""
        try:
            await self.links.aclose()
        finally:
            await self.redis.aclose(close_connection_pool=True)


def _whole(reply: Any, name: str) -> Any:
    """`reply`, unless it is an error."""
    if isinstance(reply, Exception):
        if isinstance(reply, MovedError):
            text = "nodes send us to each other; if it was named as one server, name it redis+cluster://host:port"
            raise StoreUnavailable(f"{name}: MOVED: this is a node of a Cluster; {text}")
        if isinstance(reply, AskError):
            raise StoreUnavailable(f"{name}: ASK: the pool's slot is moving to another node; it works again after that")
        raise StoreUnavailable(f"{name}: {type(reply).__name__}: {reply}") from reply
    return reply


async def insist(call: Callable[[], Awaitable[T]]) -> T:
    """The reply of `call`, tried up to three times with jitter. Only for what is safe to repeat.

    Raises:
        StoreUnavailable: at the third failure, or at one that took 5 s or more.
    """
    began, wait_s = time.monotonic(), _FIRST_WAIT_S
    for _ in range(_ATTEMPTS - 1):
        try:
            return await call()
        except StoreUnavailable:
            if time.monotonic() - began >= _NO_REPEAT_AFTER_S:
                raise
        await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
        wait_s *= 3
    return await call()
