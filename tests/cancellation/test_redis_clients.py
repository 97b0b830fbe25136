"""What talks to Redis is cancelled at every await: it ends, stays usable, and neither loses nor mixes up a reply."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from lua import load
from tests.cancellation.awaits import sweep
from tests.client.actors import Worker
from tests.limiter.books import LIMITS, Books
from tokenweir import Client, Limiter
from tokenweir.connection import Connection, connect
from tokenweir.keys import Keys

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.leaves_keys("requests are left in the middle of their way"),
    pytest.mark.parametrize("late", [False, True], ids=["before the reply", "with the reply"]),
]
_COUNT = itertools.count()


@pytest.fixture
async def own(redis_url: str, keys: Keys) -> AsyncIterator[Connection]:
    """A connection pool with room for two."""
    opened = Connection(connect(redis_url, max_connections=2), keys)
    yield opened
    await opened.aclose()


@pytest.fixture
async def client(redis_url: str, keys: Keys) -> AsyncIterator[Client]:
    async with Client(redis_url, pool=keys.pool) as opened:
        yield opened


@pytest.fixture
async def answering(connection: Connection) -> AsyncIterator[None]:
    """Somebody answers whatever comes in."""
    worker = Worker(connection)

    async def answer() -> None:
        while True:
            await worker.answer_all()
            await asyncio.sleep(0.001)

    task = asyncio.create_task(answer())
    yield
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("kind", ["command", "commands", "script", "blocked read"])
async def test_a_connection(own: Connection, keys: Keys, kind: str, late: bool) -> None:
    """After a cancelled call of any kind the next one gets the reply to its own question, on as few connections."""
    renew = load("leases_renew")

    async def call() -> None:
        if kind == "command":
            await own.command("SET", keys.key("x"), "1", "EX", 60)
        elif kind == "commands":
            await own.commands([("ECHO", "a"), ("ECHO", "b")])
        elif kind == "script":
            await own.run(renew, ["edge", "me", "1-1"], bind={"<source>": keys.key("edge")})
        else:
            await own.command("XREAD", "BLOCK", 20, "STREAMS", keys.key("none"), "$", timeout_s=5)

    async def usable() -> None:
        word = f"word {next(_COUNT)}".encode()
        assert await own.commands([("ECHO", word), ("ECHO", word + b"!")]) == [word, word + b"!"]

    assert await sweep(call, usable, late=late) >= 1
    # Both of its connections are free.
    assert await asyncio.wait_for(_together(own), 5) == [b"0", b"1"]


async def _together(connection: Connection) -> list[bytes]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(connection.command("ECHO", str(i))) for i in range(2)]
    return [task.result() for task in tasks]


@pytest.mark.usefixtures("answering")
@pytest.mark.parametrize("kind", ["submit", "ask", "stream", "result", "status", "cancel", "results"])
async def test_a_client(client: Client, kind: str, late: bool) -> None:
    """After a cancelled call of any kind the client asks and is answered as before; what was queued has one answer."""
    ids: list[str] = []

    def new_id() -> str:
        ids.append(f"{kind}{next(_COUNT)}")
        return ids[-1]

    async def call() -> None:
        if kind == "submit":
            await client.submit("hello", id=new_id())
        elif kind == "ask":
            await client.ask("hello", id=new_id(), wait_s=5)
        elif kind == "stream":
            async for event in client.stream("hello", id=new_id()):
                assert event.kind == "done"
        elif kind == "result":
            await client.result(ids[0])
        elif kind == "status":
            await client.status(ids[0])
        elif kind == "cancel":
            await client.cancel(ids[0])
        else:
            results = client.results(start="0")
            try:
                await anext(results)
            finally:
                await results.aclose()

    async def usable() -> None:
        id_ = new_id()
        await client.submit("still there?", id=id_)
        assert (await client.result(id_, timeout_s=5)).content == id_

    assert await sweep(call, usable, late=late) >= 1
    answers = [(await client.status(id_)) for id_ in ids]
    queued = [status for status in answers if status is not None]
    for status in queued:
        assert (await client.result(status.id, timeout_s=5)).content == status.id


@pytest.mark.parametrize("kind", ["reserve", "start and end"])
async def test_a_limiter(redis_url: str, keys: Keys, connection: Connection, kind: str, late: bool) -> None:
    """After a cancelled call nothing is on its way any more, and what is charged is what was granted."""
    granted = 0
    async with Limiter(redis_url, pool=keys.pool, limits={"primary": LIMITS}) as limiter:
        books = Books(connection)
        await books.warm()

        async def call() -> None:
            nonlocal granted
            if kind == "reserve":
                async with limiter.reserve(tokens=10):
                    granted += 1
            else:
                async with Limiter(redis_url, pool=keys.pool) as other, other.reserve(tokens=10):
                    granted += 1

        async def usable() -> None:
            nonlocal granted
            async with limiter.reserve(tokens=10, wait_s=5):
                granted += 1

        assert await sweep(call, usable, late=late) >= 1
    assert await books.count("in_flight") == 0
    assert (await books.used("tpm"), await books.used("rpm")) == (10 * granted, granted)
