"""Clients of a real server, a worker's part played by hand, and a network that fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.client.actors import Open, Worker
from tests.faults.proxy import Proxy
from tests.support import Server, on_every_server
from tokenweir import Client
from tokenweir.connection import Connection
from tokenweir.keys import Keys


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_every_server(metafunc)


@pytest.fixture
async def opened(redis_url: str, keys: Keys) -> AsyncIterator[Open]:
    """Makes clients of the test's pool; all are closed with the test."""
    async with AsyncExitStack() as stack:

        def open_one(url: str = redis_url, **more: Any) -> Client:
            client = Client(url, pool=keys.pool, **more)
            stack.push_async_callback(client.aclose)
            return client

        yield open_one


@pytest.fixture
def client(opened: Open) -> Client:
    return opened()


@pytest.fixture
def worker(connection: Connection) -> Worker:
    return Worker(connection)


@pytest.fixture
def network(redis_server: Server) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as way:
        yield way
