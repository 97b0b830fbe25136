"""Limiters of a real server, and a network between that fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.faults.proxy import Proxy
from tests.limiter.books import LIMITS, Books, Open
from tests.support import Server, on_every_server
from tokenweir import Limiter
from tokenweir.connection import Connection
from tokenweir.keys import Keys


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_every_server(metafunc)


@pytest.fixture
async def opened(redis_url: str, keys: Keys) -> AsyncIterator[Open]:
    """Makes limiters of the test's pool; all are closed with the test."""
    async with AsyncExitStack() as stack:

        def open_one(url: str = redis_url, *, limits: dict[str, dict[str, Any]] | None = None, **more: Any) -> Limiter:
            limiter = Limiter(url, pool=keys.pool, limits=limits, **more)
            stack.push_async_callback(limiter.aclose)
            return limiter

        yield open_one


@pytest.fixture
async def books(connection: Connection) -> Books:
    return Books(connection)


@pytest.fixture
async def limiter(opened: Open, books: Books) -> Limiter:
    """A limiter whose budget is full: 10,000,000 tokens in a window that no test sees the end of."""
    limiter = opened(limits={"primary": LIMITS})
    await limiter.__aenter__()
    await books.warm()
    return limiter


@pytest.fixture
def network(redis_server: Server) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as way:
        yield way
