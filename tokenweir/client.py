"""The client: put requests in, get results out, from any number of coroutines of one event loop.

What travels is in `draft` and `wire`; putting requests in is in `submission`, taking them back in `cancellation`,
waiting for single ones in `inbox`, reading all results in `reader`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from lua import load
from tokenweir.cancellation import cancel
from tokenweir.connection import Connection, connect, insist
from tokenweir.draft import Content, Draft, as_draft, checked_id
from tokenweir.durability import Durability
from tokenweir.errors import ConfigError, RequestError, ResultTimeout
from tokenweir.inbox import Inbox, Listener
from tokenweir.keys import Keys
from tokenweir.reader import GroupReader, tail
from tokenweir.submission import Submission
from tokenweir.wire import Class, Event, Result, Status, Ticket, status_from_fields

__all__ = ["Client", "Content", "Draft"]

_STATUS = load("request_status")
_CONNECTIONS: Final = 4


class Client:
    """One process's access to one pool, at most five connections however many results it waits for.

    Make it and use it inside one running event loop, after any fork; `async with` closes it. Every call may be
    cancelled at any time; the request itself goes on, since it is Redis that holds it. Reading `results` takes one
    more connection for each loop.

    Args:
        url: `redis://`, `redis+sentinel://`, `redis+cluster://`, each with `rediss` for TLS, or `unix://`.
        pool: the pool's name in the workers' configuration.
        prefix: what all its keys begin with, as configured there.
        max_waiting: `submit` refuses beyond so many requests that wait.
        durability: when `submit` returns: at once (`aof`), when a replica has the request (`replica`), or when it is
            on the primary's disk (`fsync`; see docs/redis.md). Not reached in a few seconds is a StoreUnavailable.

    Raises:
        ConfigError: the URL, the pool's name, the prefix or the durability can't be used.
    """

    def __init__(
        self,
        url: str,
        *,
        pool: str = "main",
        prefix: str = "tokenweir",
        max_waiting: int = 100_000,
        durability: Durability = "aof",
    ) -> None:
        try:
            self._keys = Keys(pool, prefix=prefix)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._url = url
        self._control = Connection(connect(url, max_connections=_CONNECTIONS), self._keys)
        self._submission = Submission(self._control, max_waiting=max_waiting, durability=durability)
        self._inbox = Inbox(self._keys, self._connection)
        self._readings: set[Connection] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop waiting, delete the inbox and close every connection. Requests go on; harmless twice."""
        try:
            await self._inbox.aclose(self._control)
        finally:
            for connection in (*self._readings, self._control):
                await connection.aclose()

    async def submit(
        self,
        content: Content,
        *,
        id: str | None = None,
        tenant: str = "default",
        priority: Class = "interactive",
        task: str = "",
        complexity: str = "",
        deadline: float | None = None,
        max_wait: float | None = None,
        stream: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Queue a request, once, and return its id. The arguments are those of a `Draft`.

        An id that is known already queues nothing new, so that a repeat with the same `id` is safe; a lost reply
        is repeated here, up to three times.

        Raises:
            RequestError: it could never succeed; nothing was queued.
            QueueFull: more than `max_waiting` wait, or (PoolClosed) operators drained the pool; nothing was queued.
            StoreUnavailable: Redis doesn't answer or refuses; whether it was queued is unknown.
        """
        draft = as_draft(
            content,
            id=id,
            tenant=tenant,
            priority=priority,
            task=task,
            complexity=complexity,
            deadline=deadline,
            max_wait=max_wait,
            stream=stream,
            metadata=metadata,
        )
        await self._submission.send([draft])
        return draft.id

    async def submit_many(self, requests: Iterable[Content | Draft]) -> list[str]:
        """Queue many requests in few round trips, and return their ids in the same order.

        All are checked before the first is queued. After an error some may be queued: repeat the call with the same
        `Draft`s, and each is still queued once (plain contents would get new ids).

        Raises:
            RequestError, QueueFull, StoreUnavailable: as `submit`, for the first request that met it.
        """
        drafts = [as_draft(each) for each in requests]
        await self._submission.send(drafts)
        return [draft.id for draft in drafts]

    async def result(self, request_id: str, *, timeout_s: float | None = 60.0) -> Result:
        """The terminal result of a request, whoever submitted it, before or after this call.

        Events that get lost are made up for: what is waited for is looked up anew about every 5 s (less often
        beyond 1,000 waits). Outages shorter than 10 s are waited out.

        Args:
            timeout_s: how long to wait; None = as long as it takes, 0 = only look. The first look is not cut off.

        Raises:
            ResultTimeout: none yet; the request goes on, ask again.
            RequestError: the id has no valid form, or Redis doesn't know the request any more.
            StoreUnavailable: Redis didn't answer for 10 s, or refused.
        """
        with self._inbox.listen(checked_id(request_id)) as listener:
            await self._look(listener)
            event = await listener.next(timeout_s)
        assert event.result is not None
        return event.result

    async def ask(self, content: Content, *, wait_s: float, **more: Any) -> Result | Ticket:
        """Submit a request and wait for its result, or take a ticket after `wait_s`: never a block.

        Args:
            more: as for `submit`.

        Raises:
            RequestError, QueueFull, StoreUnavailable: as `submit`.
        """
        request_id = await self.submit(content, **more)
        try:
            return await self.result(request_id, timeout_s=wait_s)
        except ResultTimeout:
            status = await self.status(request_id)
        if status is None:
            return Ticket(id=request_id, state="submitted")
        if status.result is not None:
            return status.result
        return Ticket(id=request_id, state=status.state, position=status.position, eta_s=status.eta_s)

    async def stream(
        self, content: Content, *, timeout_s: float | None = 60.0, **more: Any
    ) -> AsyncGenerator[Event, None]:
        """Submit a request; pieces of its answer as they come (`delta`), at last its result (`done`).

        When a `delta` has a higher `attempt` than the one before, the answer starts over: drop what came until then.
        Deltas are a preview and may be missing; the result always has the whole text. If the id was known already,
        only its result comes.

        Args:
            timeout_s: the longest time without an event; None = no bound.
            more: as for `submit`.

        Raises:
            ResultTimeout: nothing came for `timeout_s`; the request goes on, `result` can wait for it.
            RequestError, QueueFull, StoreUnavailable: as `submit` and `result`.
        """
        draft = as_draft(content, **{**more, "stream": True})
        with self._inbox.listen(draft.id, deltas=True) as listener:
            await self._submission.send([draft], inbox=self._inbox.name, reply_to=self._inbox.key)
            await self._look(listener)
            attempt = 0
            while True:
                event = await listener.next(timeout_s)
                if event.kind == "done":
                    yield event
                    return
                if event.attempt >= attempt:
                    attempt = event.attempt
                    yield event

    async def results(
        self,
        group: str | None = None,
        *,
        consumer: str | None = None,
        start: str = "0",
        takeover_s: float = 300.0,
    ) -> AsyncGenerator[Result, None]:
        """Results of all requests of the pool, for ever, as they come.

        With a group, processes share them out: each result goes to one of them, and is acknowledged when the loop
        asks for the next one. So one whose loop body failed, or in which you left the loop, comes again: at once to
        a loop with the same `consumer`, after `takeover_s` to any other. Entries that can't be read are skipped with
        a warning. Without a group, every loop gets everything.

        Args:
            group: made on first use.
            consumer: this process's name in the group, of which two must not read at once; by default a new one.
            start: where a new group, or a loop without one, begins: `0` = the oldest result kept, `$` = with what
                comes after the first read.
            takeover_s: longer than any loop body takes.

        Raises:
            StoreUnavailable: an outage of more than 10 s.
        """
        connection = self._connection()
        self._readings.add(connection)
        try:
            if group is None:
                reading = tail(connection, start=start)
            else:
                reader = GroupReader(connection, group=group, consumer=consumer, start=start, takeover_s=takeover_s)
                reading = reader.results()
            async for result in reading:
                yield result
        finally:
            self._readings.discard(connection)
            await connection.aclose()

    async def cancel(self, request_id: str) -> Result | None:
        """End a request, wherever it stands; its terminal result, or None when the id isn't known (yet, or any more).

        The result is `cancelled` at once, for everybody who waits for it, and nothing of it is called for any more: a
        call that runs is closed, and stays charged. A request that had its result already keeps it, and that is what
        you get. Harmless twice.

        Raises:
            RequestError: the id has no valid form.
            StoreUnavailable: Redis didn't answer, or refused; whether it was cancelled is unknown.
        """
        return (await self.cancel_many([request_id]))[0]

    async def cancel_many(self, request_ids: Iterable[str]) -> list[Result | None]:
        """The same for many requests in few round trips, in their order."""
        return await cancel(self._control, [checked_id(each) for each in request_ids])

    async def status(self, request_id: str) -> Status | None:
        """Where a request is, with its result once it has one; None when the id isn't known, or not any more.

        Raises:
            RequestError: the id has no valid form.
            StoreUnavailable: Redis didn't answer, or refused.
        """
        bind = {"<status>": self._keys.status(checked_id(request_id))}
        flat, position, eta_ms = await insist(lambda: self._control.run(_STATUS, (request_id,), bind=bind))
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        try:
            return status_from_fields(request_id, fields, position=position, eta_s=eta_ms / 1000)
        except msgspec.ValidationError as error:
            raise RequestError(
                f"the status of request {request_id} isn't readable: {error}", code="internal"
            ) from error

    def _connection(self) -> Connection:
        """A connection for blocking reads: they must not hold up anybody else."""
        return Connection(connect(self._url, max_connections=1), self._keys)

    async def _look(self, listener: Listener) -> None:
        await insist(lambda: self._inbox.look([listener.request_id], self._control))
