"""The one way to Redis, for the client and the engine alike.

Four defaults of redis-py 8 are dealt with here, and nowhere else:

1. It repeats every command up to ten times, so one lost reply makes two XADDs: retries are off, and only
   scripts that are safe twice are repeated, by us, in the open.
2. Its socket timeout of 5 s breaks longer blocking reads: it is off; `asyncio.timeout` guards each call.
3. On Python 3.11 that timeout can swallow a task's cancellation: same cure.
4. A read that is cancelled leaves entries pending and unseen: readers are never cancelled to stop, and
   what is pending but not in hand is taken up again (pipeline.loop).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from lua import Script
from tokenweir.errors import ConfigError, StoreUnavailable
from tokenweir.keys import Keys

Argument = bytes | str | int | float
T = TypeVar("T")

# Longer than any script of ours takes, shorter than a lease: a silent peer must not hold a worker up.
CALL_TIMEOUT_S = 10.0
_SCHEMES = ("redis://", "rediss://", "unix://")


def connect(url: str, *, max_connections: int = 8) -> Redis:
    """A client for `url`: bytes in, bytes out, nothing repeated behind the caller's back.

    Callers beyond `max_connections` wait for a free connection instead of failing.

    Raises:
        ConfigError: the URL isn't of a kind we know.
    """
    if url.startswith("unix:/") and not url.startswith("unix://"):
        url = "unix://" + url.removeprefix("unix:")
    if not url.startswith(_SCHEMES):
        raise ConfigError(f"Redis URL {url.split('@')[-1]!r} must start with one of: embedded: {' '.join(_SCHEMES)}")
    options: dict[str, Any] = {} if url.startswith("unix") else {"socket_keepalive": True, "socket_connect_timeout": 5}
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=None,
        decode_responses=False,
        socket_timeout=None,
        retry=Retry(NoBackoff(), 0),
        **options,
    )
    return Redis(connection_pool=pool)


class Connection:
    """Commands and scripts on one pool's keys; every failure is a `StoreUnavailable`."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis = redis
        self.keys = keys

    async def run(
        self,
        script: Script,
        args: Iterable[Argument] = (),
        *,
        bind: Mapping[str, str] | None = None,
        rest: Sequence[str] = (),
    ) -> Any:
        """Run `script` and return its reply.

        Args:
            bind: full keys for the script's `<name>` keys.
            rest: names (without the pool's prefix) of the keys behind its `*`.

        Raises:
            StoreUnavailable: no reply, or an error: whether it ran is unknown.
        """
        bound = bind or {}
        names = [bound[name] if name in bound else self.keys.key(name) for name in script.keys]
        names.extend(self.keys.key(name) for name in rest)
        tail = [*names, *args]
        try:
            return await self._call(self.redis.evalsha(script.sha, len(names), *cast("list[str]", tail)))
        except NoScriptError:
            # Emptied by a restart, a flush or a fail-over: send the text; that loads it as well.
            pass
        except RedisError as error:
            raise StoreUnavailable(f"{script.name}: {type(error).__name__}: {error}") from error
        try:
            return await self._call(self.redis.eval(script.text, len(names), *cast("list[str]", tail)))
        except RedisError as error:
            raise StoreUnavailable(f"{script.name}: {type(error).__name__}: {error}") from error

    async def command(self, *words: Argument, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Run one command and return its reply.

        Raises:
            StoreUnavailable: no reply within `timeout_s`, or an error.
        """
        try:
            return await self._call(self._execute(*words), timeout_s)
        except RedisError as error:
            raise StoreUnavailable(f"{words[0]!s}: {type(error).__name__}: {error}") from error

    async def commands(self, many: Sequence[Sequence[Argument]]) -> list[Any]:
        """Run independent commands in one round trip.

        Raises:
            StoreUnavailable: no reply, or an error in one of them.
        """
        pipeline = self.redis.pipeline(transaction=False)
        for words in many:
            pipeline.execute_command(*words)
        try:
            return cast("list[Any]", await self._call(pipeline.execute()))
        except RedisError as error:
            raise StoreUnavailable(f"{type(error).__name__}: {error}") from error

    def _execute(self, *words: Argument) -> Awaitable[Any]:
        return cast("Awaitable[Any]", self.redis.execute_command(*words))  # type: ignore[no-untyped-call]

    async def _call(self, reply: Awaitable[T], timeout_s: float = CALL_TIMEOUT_S) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await reply
        except TimeoutError as error:
            raise StoreUnavailable(f"no reply from Redis within {timeout_s:g} s") from error
        except OSError as error:
            raise StoreUnavailable(f"{type(error).__name__}: {error}") from error

    async def aclose(self) -> None:
        """Close all connections."""
        await self.redis.aclose(close_connection_pool=True)
