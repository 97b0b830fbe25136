"""The one way to Redis, for the client and the engine alike.

Four defaults of redis-py 8 are dealt with here, and nowhere else:

1. It repeats every command up to ten times, so one lost reply makes two XADDs: retries are off, and only
   scripts that are safe twice are repeated, by us, in the open.
2. Its socket timeout of 5 s breaks longer blocking reads: it is off; `_Within` guards each call.
3. On Python 3.11 that timeout can swallow a task's cancellation: same cure.
4. A read that is cancelled leaves entries pending and unseen: readers are never cancelled to stop, and
   what is pending but not in hand is taken up again (pipeline.loop).

Calls go over the library's connections, but not through its client: pool, retries, events and telemetry of a
call cost 80 us of CPU there, four times what the call itself does, and a request makes seven.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from hiredis import pack_command
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

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
        driver_info=None,  # a user with least rights may not tell the server its library's name
        **options,
    )
    return Redis(connection_pool=pool)


class Call(NamedTuple):
    """One run of a script among many: keys for its `<name>` keys, and its arguments."""

    bind: Mapping[str, str]
    args: Sequence[Argument]


class _Within:
    """`asyncio.timeout` at a third of its price, which is a fifth of what a call costs here: no coroutines of its own.

    The block ends with a TimeoutError after so long; another cancellation of the task passes through it.
    """

    __slots__ = ("_before", "_expired", "_task", "_timeout_s", "_timer")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("calls to Redis are made by tasks")
        self._task, self._before = task, task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._expired and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()


class Connection:
    """Commands and scripts on one pool's keys; every failure is a `StoreUnavailable`."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis = redis
        self.keys = keys
        # Callers queue here and never in redis-py's pool: on Python 3.11 its condition variable forgets
        # a wake-up when the caller it woke is cancelled, and the others would wait for their timeouts.
        self._places = asyncio.Semaphore(redis.connection_pool.max_connections)
        self._links: set[AbstractConnection] = set()  # all that were opened
        self._idle: list[AbstractConnection] = []  # those that no call holds, the last used one first
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
        return await self.run_on(self.names(script, bind=bind, rest=rest), script, args)

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
        (reply,) = await self._round_trip([("EVALSHA", script.sha, *tail)], CALL_TIMEOUT_S)
        if isinstance(reply, NoScriptError):
            # Emptied by a restart, a flush or a fail-over: send the text; that loads it as well.
            (reply,) = await self._round_trip([("EVAL", script.text, *tail)], CALL_TIMEOUT_S)
        return _whole(reply, script.name)

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
        replies = await self._round_trip(many, CALL_TIMEOUT_S)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            # Emptied meanwhile: what was refused for it hasn't run, all else has and must not run again.
            await self.command("SCRIPT", "LOAD", script.text)
            missing = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            again = await self._round_trip([many[index] for index in missing], CALL_TIMEOUT_S)
            for index, reply in zip(missing, again, strict=True):
                replies[index] = reply
        return [_whole(reply, script.name) for reply in replies]

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
        replies = await self._round_trip(many, timeout_s)
        return [self._plain(words, reply) for words, reply in zip(many, replies, strict=True)]

    def _names(self, script: Script, bind: Mapping[str, str]) -> list[str]:
        # A `<name>` that nobody bound is a mistake of ours, and must not become a key of that name.
        return [bind[name] if name.startswith("<") else self.keys.key(name) for name in script.keys]

    def _plain(self, words: Sequence[Argument], reply: Any) -> Any:
        """A command's reply in the library's usual form, whichever protocol is spoken."""
        callback = self.redis.response_callbacks.get(str(words[0]))
        reply = _whole(reply, str(words[0]))
        return callback(reply) if callback else reply

    async def _round_trip(self, many: Sequence[Sequence[Argument]], timeout_s: float) -> list[Any]:
        """Send all in one write; their replies in order, an error in the place of its reply."""
        if self._closed:  # or new connections would be opened, which nobody closes
            raise RuntimeError("used after it was closed")
        packed = b"".join(pack_command(tuple(words)) for words in many)  # type: ignore[arg-type]  # its stub names one word
        try:
            with _Within(timeout_s):
                async with self._places:
                    return await self._exchange(self._idle.pop() if self._idle else self._open(), packed, len(many))
        except TimeoutError as error:
            raise StoreUnavailable(f"no reply from Redis within {timeout_s:g} s") from error
        except (OSError, RedisError) as error:
            # What broke one connection has mostly broken all: don't let each of them fail a call of its own.
            while self._idle:
                await self._drop(self._idle.pop())
            raise StoreUnavailable(f"{many[0][0]!s}: {type(error).__name__}: {error}") from error

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
        finally:
            # Cut off in the middle, a connection would give the next caller this one's reply.
            if whole and not self._closed:
                self._idle.append(link)
            else:
                await self._drop(link)

    def _open(self) -> AbstractConnection:
        link: AbstractConnection = self.redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        self._links.add(link)
        return link

    async def _drop(self, link: AbstractConnection) -> None:
        self._links.discard(link)
        await link.disconnect(nowait=True)

    async def aclose(self) -> None:
        """Close all connections; a call after that is a RuntimeError. Harmless twice."""
        self._closed = True
        self._idle.clear()
        for link in tuple(self._links):
            await self._drop(link)
        await self.redis.aclose(close_connection_pool=True)


def _whole(reply: Any, name: str) -> Any:
    """`reply`, unless it is an error."""
    if isinstance(reply, Exception):
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
