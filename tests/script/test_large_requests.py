"""What is large gets its turn: a deployment is kept for the first that waits, for a time, and for no longer."""

from __future__ import annotations

import pytest

from pipeline.config import Deployment
from tests.script.bench import Bench
from tests.script.conftest import Open
from tests.script.views import SMALL, waiting, work

pytestmark = pytest.mark.anyio

WINDOW_S = 60


@pytest.mark.parametrize(
    ("priority", "small"), [("interactive", "interactive"), ("batch", "batch"), ("standard", "batch")]
)
async def test_half_of_the_limit_is_served_within_two_windows_under_endless_small_ones(
    bench: Bench, priority: str, small: str
) -> None:
    """Newcomers of other tenants find room again and again; the large request goes within two windows all the same."""
    await work(bench, seconds=70, small=small, every_s=0.8)
    large = bench.request("large", prompt_tokens=4_960, tenant="large", priority=priority)
    assert await bench.send(large) == ["deferred"]

    assert await work(bench, until="large", seconds=2 * WINDOW_S, small=small) < 2 * WINDOW_S


async def test_higher_classes_go_on_while_a_lower_one_is_kept_a_place(bench: Bench) -> None:
    """A deployment kept for a batch request is still there for interactive users, until it has aged past them."""
    await work(bench, seconds=60, every_s=0.8)
    await bench.send(bench.request("large", prompt_tokens=4_960, tenant="large", priority="batch"))
    await work(bench, seconds=20, every_s=0)

    assert await bench.send(bench.request("small", priority="batch", tenant="other", **SMALL)) == ["deferred"]
    assert await bench.send(bench.request("user", tenant="user", **SMALL)) == ["premium"]


async def test_nobody_is_kept_back_for_one_that_has_gone(bench: Bench) -> None:
    """As soon as the large request is served others of its class go again."""
    await work(bench, seconds=60, every_s=0.8)
    await bench.send(bench.request("large", prompt_tokens=4_960, tenant="large"))
    assert await work(bench, until="large", seconds=60, every_s=0) < 60
    await bench.advance(60)

    assert await bench.send(bench.request("small", tenant="other", **SMALL)) == ["premium"]
    assert b"@head" not in await bench.redis("HGETALL", bench.keys.key("limits"))


async def test_what_is_kept_for_a_request_that_vanished_is_free_again(bench: Bench) -> None:
    """The first in line is deleted by hand: nobody waits for it longer than it would have."""
    await work(bench, seconds=60, every_s=0.8)
    await bench.send(bench.request("large", prompt_tokens=4_960, tenant="large"))
    await work(bench, seconds=20, every_s=0)
    assert await bench.send(bench.request("small", tenant="small", **SMALL)) == ["deferred"]
    left = ("backlog:interactive", "backlog:meta", "backlog:bodies", "tenants", "status:large", "status:small")
    await bench.redis("DEL", *(bench.keys.key(name) for name in left))
    await bench.advance(60)

    assert await bench.send(bench.request("other", tenant="other", **SMALL)) == ["premium"]


async def test_only_the_deployment_it_can_have_first_is_kept(opened: Open) -> None:
    """With a second deployment everybody else goes there meanwhile."""
    bench = await opened(Deployment(name="large", rpm=100, tpm=10_000), Deployment(name="small", rpm=100, tpm=2_000))
    await work(bench, seconds=60, every_s=0.8)
    await bench.send(bench.request("first", prompt_tokens=4_960, tenant="first"))
    await work(bench, seconds=20, every_s=0)

    verdicts = await bench.admit(await bench.arrive(bench.request("other", tenant="other", **SMALL)))

    assert verdicts == [("premium", "small")]


@pytest.mark.one_server("it is about arithmetic, and takes long")
async def test_fifteen_users_get_in_at_once_after_two_minutes_of_saturating_batch(opened: Open) -> None:
    """A batch job takes all it can get for two minutes; fifteen interactive requests go to premium all the same."""
    bench = await opened(Deployment(name="primary", rpm=500, tpm=300_000))
    await work(bench, seconds=120, small="batch", every_s=0.1)
    assert len(await waiting(bench)) > 50, "the job isn't through yet"

    users = [bench.request(f"user {n}", tenant=f"user {n}", **SMALL) for n in range(15)]

    assert await bench.send(*users) == ["premium"] * 15
