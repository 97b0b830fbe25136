"""The second run: the load on an installation of tokenweir, through the Python client."""

import asyncio
import time
from collections import Counter
from contextlib import aclosing

import msgspec

from pipeline.demo.installation import Installation, Workers
from pipeline.demo.story import Ask, Story, batch, wishes
from pipeline.demo.tally import Side, Tally, Way
from pipeline.demo.view import View
from pipeline.demo.watch import Watch
from tokenweir import Client, Result
from tokenweir.connection import Connection
from tokenweir.draft import Draft
from tokenweir.wire import Class

TITLE = "2 of 2: with tokenweir"
# The batch job is submitted in a second, as by a program that reads a file: the time-lapse speeds up everything but
# our own CPU, which two cores would otherwise need for nothing else while users are waiting.
_PORTION, _PORTION_S = 20, 0.05
_FINISH_MINUTES = 2.0  # provider minutes for what is still open at the story's end
_SETTLE_S = 0.2


async def play_pipeline(story: Story, view: View, installed: Installation) -> Side:
    """The story with tokenweir. Users stop asking after the last provider minute; what is open then is finished.

    Raises:
        DemoFailed: a group of workers ended.
    """
    async with Client(installed.url) as client:
        load = _Load(story, client, installed.connection, time.monotonic() + _SETTLE_S)
        watch = Watch(story, load.tally, installed.ledger, view, title=TITLE, start_s=load.start_s)
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(watch.run(load.depth))
            watched = group.create_task(_watch_over(installed.workers))
            await load.play()
            looking.cancel()
            watched.cancel()
    end_s = time.monotonic()
    await installed.workers.end()  # before the count, so that nothing can come behind it
    lost, duplicates = await load.missing()
    return msgspec.structs.replace(await watch.close(end_s), lost=lost, duplicates=duplicates)


async def _watch_over(workers: Workers) -> None:
    while True:
        workers.check()
        await asyncio.sleep(1.0)


class _Load:
    """The users and the batch job, through the Python client."""

    def __init__(self, story: Story, client: Client, connection: Connection, start_s: float) -> None:
        self.tally = Tally()
        self.start_s = start_s
        self._story = story
        self._client = client
        self._connection = connection
        self._end_s = start_s + story.length_s
        self._submitted: set[str] = set()

    async def depth(self) -> int:
        """How many requests wait in the backlog."""
        return int(await self._connection.command("HLEN", self._connection.keys.key("backlog:meta")))

    async def play(self) -> None:
        """The whole story; what isn't finished after a further while is left open."""
        limit_s = self._end_s + _FINISH_MINUTES * self._story.minute_s - time.monotonic()
        try:
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
                group.create_task(self._batch())
                for user in range(self._story.users):
                    group.create_task(self._user(user))
        except TimeoutError:
            pass  # the table shows what is missing

    async def missing(self) -> tuple[int, int]:
        """How many submitted requests have no terminal result, and how many have more than one."""
        responses = await self._connection.command("XRANGE", self._connection.keys.key("responses"), "-", "+")
        results = Counter(fields[b"id"].decode() for _, fields in responses)
        return len(self._submitted - results.keys()), sum(count > 1 for count in results.values())

    async def _user(self, user: int) -> None:
        await asyncio.sleep(self.start_s - time.monotonic())
        for wish in wishes(self._story, user):
            if time.monotonic() + wish.think_s >= self._end_s:
                return
            await asyncio.sleep(wish.think_s)
            wished_s = time.monotonic()
            self.tally.wished(wish.ask.id, wished_s, batch=False)
            await self._client.submit_many([_draft(wish.ask)])
            self._submitted.add(wish.ask.id)
            submit_s = time.monotonic() - wished_s
            result = await self._client.result(wish.ask.id, timeout_s=None)
            ttft_s = submit_s + result.ttft_ms / 1000  # a little too much: the reply's way back is counted, too
            self.tally.heard(result.id, wished_s + ttft_s)
            await self._count(result, ttft_s, batch=False)

    async def _batch(self) -> None:
        """Submit everything, then read the results as they come."""
        drafts = [_draft(ask) for ask in batch(self._story)]
        await asyncio.sleep(self.start_s + self._story.batch_at_s - time.monotonic())
        open_ids = {draft.id for draft in drafts}
        for draft in drafts:
            self.tally.wished(draft.id, time.monotonic(), batch=True)
        for first in range(0, len(drafts), _PORTION):
            self._submitted.update(await self._client.submit_many(drafts[first : first + _PORTION]))
            await asyncio.sleep(_PORTION_S)
        async with aclosing(self._client.results()) as results:
            async for result in results:
                if result.id in open_ids:
                    open_ids.discard(result.id)
                    await self._count(result, 0.0, batch=True)
                if not open_ids:
                    return

    async def _count(self, result: Result, ttft_s: float, *, batch: bool) -> None:
        deferred = await self._connection.command("HGET", self._connection.keys.status(result.id), "deferred")
        self.tally.ended(result.id, well=result.ok)
        if result.ok:
            way = _way(result, deferred=bool(deferred))
            self.tally.went(way, ttft_s=ttft_s, added_s=result.waited_ms / 1000, batch=batch)


def _draft(ask: Ask) -> Draft:
    body = {"messages": [{"role": "user", "content": ask.prompt}], "max_tokens": ask.cap}
    priority: Class = "batch" if ask.batch else "interactive"
    return Draft(body, id=ask.id, tenant=ask.tenant, priority=priority, task=ask.task)


def _way(result: Result, *, deferred: bool) -> Way:
    if deferred:
        return "deferred"
    return "edge" if result.route == "edge" else "premium"
