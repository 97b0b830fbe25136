"""Limits are put in place once; a budget begins when its limits do."""

from __future__ import annotations

import msgspec
import pytest

from tests.script import views
from tests.script.bench import PRIMARY, START_US, Bench
from tokenweir.connection import Connection

pytestmark = pytest.mark.anyio


@pytest.mark.leaves_keys("only limits and the test's clock")
async def test_a_budget_is_born_with_its_limits(connection: Connection) -> None:
    """The cold start runs from the first worker's start: nobody's first request has to wait for it."""
    bench = Bench(connection, (PRIMARY,), lambda script: script)
    await bench.forward_to(START_US)

    await bench.seed((PRIMARY,))

    born = await bench.redis("HGET", bench.keys.key("budget:primary"), "born")
    assert int(born) == START_US
    assert await views.level(bench) < 0


async def test_a_worker_that_starts_later_changes_nothing(bench: Bench) -> None:
    """Workers of the same configuration leave a running budget alone."""
    await bench.send(bench.request("a"))
    before = await views.snapshot(bench)

    await bench.seed(bench.deployments)

    assert await views.snapshot(bench) == before


async def test_a_changed_configuration_keeps_what_was_charged(bench: Bench) -> None:
    """Another limit in the file takes effect at once, on top of what the window holds."""
    await bench.send(bench.request("a"))
    charged = await views.budget(bench)

    await bench.seed((msgspec.structs.replace(PRIMARY, tpm=5_000),))

    assert await views.budget(bench) == charged
    assert int(await bench.redis("HGET", bench.keys.key("limits"), "@version")) == 2
