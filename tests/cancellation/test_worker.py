"""A whole worker is cancelled at every await of its start and its stop: it ends, and what it opened is closed."""

from __future__ import annotations

import pytest

from pipeline.app import Worker
from pipeline.config import Config, Deployment, Edge, Pool, Redis
from tests.cancellation.awaits import sweep
from tokenweir.connection import Connection
from tokenweir.keys import Keys

pytestmark = [pytest.mark.anyio, pytest.mark.leaves_keys("a worker's streams live for ever")]


# asyncio's own: a `create_server` that is cancelled leaves its socket to the garbage collector.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket")
@pytest.mark.parametrize("late", [False, True], ids=["before it happens", "as it happens"])
async def test_a_worker(redis_url: str, keys: Keys, connection: Connection, late: bool) -> None:
    """A second signal may come at any moment of the start or of an orderly stop."""
    pool = Pool(
        deployments=(Deployment(api_key="sk-none", rpm=10),), edge=Edge(base_url="http://127.0.0.1:1"), drain_s=1
    )
    config = Config(redis=Redis(url=redis_url), pools={keys.pool: pool})

    async def start_and_stop() -> None:
        worker = Worker(config, None, url=redis_url)
        worker.stop()
        await worker.run()

    async def usable() -> None:
        assert await connection.command("PING") in (True, b"PONG")

    assert await sweep(start_and_stop, usable, late=late) > 5
    assert not await connection.command("HLEN", keys.key("slots"))
