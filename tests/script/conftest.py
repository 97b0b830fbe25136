"""A pool whose scripts run on a clock of ours, and in which everything is brought to its end after each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from pipeline.config import Deployment
from tests.script import views
from tests.script.bench import PRIMARY, Bench
from tests.support import on_every_server
from tokenweir.connection import Connection

Open = Callable[..., Awaitable[Bench]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    on_every_server(metafunc)


@pytest.fixture
async def opened(connection: Connection) -> AsyncIterator[Open]:
    """Opens the test's pool with other deployments or slots.

    Afterwards whatever the test left unfinished is finished: then each id must have one result, and the
    backlog must be gone without a trace.
    """
    benches: list[Bench] = []

    async def open_one(*deployments: Deployment, **slots: Any) -> Bench:
        bench = Bench(connection, deployments or (PRIMARY,), lambda script: script)
        await bench.open(**slots)
        benches.append(bench)
        return bench

    yield open_one
    for bench in benches:
        await views.run_out(bench)
        assert await views.lengths(bench) == {}
        left = [f"backlog:{name}" for name in views.BACKLOG] + ["tenants", "reservations", "grants"]
        assert await views.exists(bench, *left) == []
        answers = await views.answers(bench)
        assert all(count == 1 for count in answers.values()), answers
        await bench.redis("DEL", bench.keys.key("clock"))


@pytest.fixture
async def bench(opened: Open) -> Bench:
    """A pool with one deployment (100 requests and 10,000 tokens a minute), 50 premium slots and no edge."""
    return await opened()
