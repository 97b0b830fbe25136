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
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

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
# An outage that a caller should not notice: a lost connection, a short fail-over.
_ATTEMPTS, _FIRST_WAIT_S, _NO_REPEAT_AFTER_S = 3, 0.1, 5.0
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


class Call(NamedTuple):
    """One run of a script among many: keys for its `<name>` keys, and its arguments."""

    bind: Mapping[str, str]
    args: Sequence[Argument]


class Connection:
    """Commands and scripts on one pool's keys; every failure is a `StoreUnavailable`."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis = redis
        self.keys = keys
        # Callers queue here and never in redis-py's pool: on Python 3.11 its condition variable forgets
        # a wake-up when the caller it woke is cancelled, and the others would wait for their timeouts.
        self._places = asyncio.Semaphore(redis.connection_pool.max_connections)
        self._closed = False

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
        names = [*self._names(script, bind or {}), *(self.keys.key(name) for name in rest)]
        tail = cast("list[str]", [*names, *args])
        try:
            return await self._call(lambda: self.redis.evalsha(script.sha, len(names), *tail))
        except NoScriptError:
            # Emptied by a restart, a flush or a fail-over: send the text; that loads it as well.
            pass
        except RedisError as error:
            raise StoreUnavailable(f"{script.name}: {type(error).__name__}: {error}") from error
        try:
            return await self._call(lambda: self.redis.eval(script.text, len(names), *tail))
        except RedisError as error:
            raise StoreUnavailable(f"{script.name}: {type(error).__name__}: {error}") from error

    async def run_many(self, script: Script, calls: Sequence[Call]) -> list[Any]:
        """Run `script` once for each of `calls`, in their order and in one round trip; returns the replies.

        Raises:
            StoreUnavailable: no reply, or an error in one of them: which ones ran is unknown.
        """
        if not calls:
            return []
        many = []
        for call in calls:
            names = self._names(script, call.bind)
            many.append(("EVALSHA", script.sha, len(names), *names, *call.args))
        replies = await self._pipelined(many, script.name)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            # Emptied meanwhile: what was refused for it hasn't run, all else has and must not run again.
            await self.command("SCRIPT", "LOAD", script.text)
            missing = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            again = await self._pipelined([many[index] for index in missing], script.name)
            for index, reply in zip(missing, again, strict=True):
                replies[index] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise StoreUnavailable(f"{script.name}: {type(reply).__name__}: {reply}") from reply
        return replies

    async def command(self, *words: Argument, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Run one command and return its reply.

        Raises:
            StoreUnavailable: no reply within `timeout_s`, or an error.
        """
        try:
            return await self._call(lambda: self._execute(*words), timeout_s)
        except RedisError as error:
            raise StoreUnavailable(f"{words[0]!s}: {type(error).__name__}: {error}") from error

    async def commands(self, many: Sequence[Sequence[Argument]], *, timeout_s: float = CALL_TIMEOUT_S) -> list[Any]:
        """Run independent commands in one round trip.

        Raises:
            StoreUnavailable: no reply within `timeout_s`, or an error in one of them.
        """
        pipeline = self.redis.pipeline(transaction=False)
        for words in many:
            pipeline.execute_command(*words)
        try:
            return cast("list[Any]", await self._call(pipeline.execute, timeout_s))
        except RedisError as error:
            raise StoreUnavailable(f"{type(error).__name__}: {error}") from error

    def _names(self, script: Script, bind: Mapping[str, str]) -> list[str]:
        # A `<name>` that nobody bound is a mistake of ours, and must not become a key of that name.
        return [bind[name] if name.startswith("<") else self.keys.key(name) for name in script.keys]

    async def _pipelined(self, many: Sequence[Sequence[Argument]], name: str) -> list[Any]:
        """The replies of all commands; an error takes the place of its reply."""
        pipeline = self.redis.pipeline(transaction=False)
        for words in many:
            pipeline.execute_command(*words)
        try:
            return cast("list[Any]", await self._call(lambda: pipeline.execute(raise_on_error=False)))
        except RedisError as error:
            raise StoreUnavailable(f"{name}: {type(error).__name__}: {error}") from error

    def _execute(self, *words: Argument) -> Awaitable[Any]:
        return cast("Awaitable[Any]", self.redis.execute_command(*words))  # type: ignore[no-untyped-call]

    async def _call(self, start: Callable[[], Awaitable[T]], timeout_s: float = CALL_TIMEOUT_S) -> T:
        if self._closed:  # redis-py would open new connections, which nobody closes
            raise RuntimeError("used after it was closed")
        try:
            async with asyncio.timeout(timeout_s), self._places:
                return await start()
        except TimeoutError as error:
            raise StoreUnavailable(f"no reply from Redis within {timeout_s:g} s") from error
        except OSError as error:
            raise StoreUnavailable(f"{type(error).__name__}: {error}") from error

    async def aclose(self) -> None:
        """Close all connections; a call after that is a RuntimeError. Harmless twice."""
        self._closed = True
        await self.redis.aclose(close_connection_pool=True)


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
