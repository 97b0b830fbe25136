"""What one caller gets from the limiter."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from lua import load
from pipeline.config import Deployment
from pipeline.priority import GIVES_WAY_WINDOWS
from pipeline.store import Gate
from tests.limiter.books import LIMITS, Books, Open
from tokenweir import Limiter, LimitReached
from tokenweir.connection import Connection

pytestmark = pytest.mark.anyio


async def test_a_grant_names_the_deployment_and_is_charged(limiter: Limiter, books: Books) -> None:
    """What I reserved is taken from every limit before my call is made."""
    async with limiter.reserve(tokens=570) as grant:
        assert grant.deployment == "primary"
        assert (await books.used("tpm"), await books.used("rpm")) == (570, 1)


async def test_a_reservation_stands_unless_i_say_otherwise(limiter: Limiter, books: Books) -> None:
    """Leaving without a word, or with an exception, keeps the charge: the call may have been made."""
    async with limiter.reserve(tokens=100):
        pass
    with pytest.raises(LookupError):
        async with limiter.reserve(tokens=10):
            raise LookupError

    await limiter.aclose()
    assert await books.used("tpm") == 110


async def test_a_call_not_made_is_given_back_once(limiter: Limiter, books: Books) -> None:
    """`cancel` gives all of it back, to the very slot; a second time is a mistake of mine."""
    async with limiter.reserve(tokens=100):
        async with limiter.reserve(tokens=40) as grant:
            grant.cancel()
            with pytest.raises(ValueError, match="has ended"):
                grant.cancel()
        with pytest.raises(ValueError, match="has ended"):
            grant.settle(tokens=1)

    await limiter.aclose()
    assert (await books.used("tpm"), await books.used("rpm")) == (100, 1)


@pytest.mark.parametrize(("settlement", "stands"), [("refund", 60), ("none", 100)])
async def test_unused_tokens_come_back_where_the_provider_gives_them_back(
    opened: Open, books: Books, settlement: str, stands: int
) -> None:
    """Settling 60 of 100 tokens frees 40 under `refund`, and nothing under `none`."""
    async with opened(limits={"primary": LIMITS | {"settlement": settlement}}) as limiter:
        await books.warm()
        async with limiter.reserve(prompt_tokens=30, output_tokens=70) as grant:
            grant.settle(prompt_tokens=30, output_tokens=30)

    assert await books.used("tpm") == stands


async def test_more_than_reserved_is_charged_too(limiter: Limiter, books: Books) -> None:
    """An estimate that was too low is made good, whatever the policy."""
    async with limiter.reserve(tokens=100) as grant:
        grant.settle(tokens=130)

    await limiter.aclose()
    assert await books.used("tpm") == 130


async def test_no_wait_means_an_answer_at_once(limiter: Limiter, books: Books) -> None:
    """`wait_s=0` in an empty budget: refused with the time until there is room, nothing charged."""
    await books.warm(tpm=0)

    began = time.monotonic()
    with pytest.raises(LimitReached) as caught:
        await limiter.reserve(tokens=1000, wait_s=0).__aenter__()

    assert time.monotonic() - began < 1
    # 100 tokens a second, less what J and the slot take.
    assert caught.value.retry_after_s == pytest.approx(10, rel=0.05)
    assert await books.used("tpm") == 0


async def test_a_bounded_wait_ends(limiter: Limiter, books: Books) -> None:
    """`wait_s=0.2`: neither much sooner nor much later."""
    await books.warm(tpm=0)

    began = time.monotonic()
    with pytest.raises(LimitReached):
        await limiter.reserve(tokens=1000, wait_s=0.2).__aenter__()

    assert 0.2 <= time.monotonic() - began < 1.2


async def test_who_has_waited_for_long_is_granted_once(opened: Open, books: Books) -> None:
    """The time to take up a grant begins with the grant, not with the first time that there was no room."""
    async with opened(limits={"primary": LIMITS | {"send_within_s": 0.4}}) as limiter:
        await books.warm(tpm=0)
        async with limiter.reserve(tokens=50):  # after half a second
            pass

    assert await books.count("granted") == 1


async def test_waiting_ends_when_there_is_room(limiter: Limiter, books: Books) -> None:
    """100 tokens a second come in: 30 are there after about 0.3 s, and not before."""
    await books.warm(tpm=0)

    began = time.monotonic()
    async with limiter.reserve(tokens=30):
        assert 0.29 <= time.monotonic() - began < 1.5


async def test_what_is_given_back_is_there_for_who_waits(limiter: Limiter, books: Books) -> None:
    """A call that isn't made lets the next one go at once, long before a refill would."""
    await books.warm(tpm=1000)
    async with limiter.reserve(tokens=1000) as grant:
        grant.cancel()
        async with limiter.reserve(tokens=990, wait_s=2):
            pass


async def test_calls_in_flight_are_counted(opened: Open, books: Books) -> None:
    """Two at a time means two: the third goes when one of them has ended, and a settled one is no longer in flight."""
    async with opened(limits={"primary": LIMITS | {"max_in_flight": 2}}) as limiter, opened() as other:
        await books.warm()
        async with limiter.reserve(tokens=1) as first, other.reserve(tokens=1):
            assert await books.count("in_flight") == 2
            with pytest.raises(LimitReached):
                await other.reserve(tokens=1, wait_s=0).__aenter__()
            first.settle(tokens=1)
            async with limiter.reserve(tokens=1, wait_s=5) as third:
                third.cancel()
                async with limiter.reserve(tokens=1, wait_s=5):
                    pass
    assert await books.count("in_flight") == 0


async def test_a_dead_programs_calls_are_in_flight_no_longer_in_the_end(
    opened: Open, books: Books, connection: Connection
) -> None:
    """A program that was killed in its call keeps the place for a quarter of an hour, not for ever."""
    limits = {"primary": LIMITS | {"max_in_flight": 1}}
    async with opened(limits=limits) as killed, opened() as other:
        await books.warm()
        await killed.reserve(tokens=10).__aenter__()
        with pytest.raises(LimitReached):
            await other.reserve(tokens=1, wait_s=0).__aenter__()
        reservations = connection.keys.key("reservations")
        [(member, until_us)] = (await connection.command("ZRANGE", reservations, 0, -1, "WITHSCORES"))[:1]
        await connection.command("ZADD", reservations, 1, member)  # as when its time is over

        async with other.reserve(tokens=1, wait_s=5):
            pass

    assert 890 < until_us / 1e6 - time.time() < 910
    assert await books.used("tpm") == 11


async def test_a_providers_refusal_pauses_for_everybody(limiter: Limiter, opened: Open, books: Books) -> None:
    """A 429 that one program saw keeps the others from calling until it is over; its own charge stands."""
    async with opened() as other:
        async with limiter.reserve(tokens=10) as grant:
            grant.refused(retry_after_s=0.3)
        began = time.monotonic()
        async with limiter.reserve(tokens=10):
            waited_s = time.monotonic() - began
            with pytest.raises(LimitReached):  # one probe first
                await other.reserve(tokens=10, wait_s=0).__aenter__()
        async with other.reserve(tokens=10, wait_s=5):
            pass

    assert 0.25 < waited_s < 2
    assert await books.used("tpm") == 30


async def test_the_limits_of_the_workers_are_found(opened: Open, connection: Connection, books: Books) -> None:
    """Beside a running pipeline no limits are given: the budget is the workers' own."""
    fields: dict[str, Any] = {"rpm": 500, "tpm": 30_000}
    deployments = [Deployment(name=name, **fields) for name in ("primary", "second")]
    kept = {"max_waiting": 10, "status_ttl_s": 60, "responses_kept": 10}
    gate = Gate(connection, consumer="w", deployments=deployments, edge_queue=0, **kept)
    await gate.seed()
    await books.warm()

    async with opened(deployments=["primary"]) as limiter, limiter.reserve(tokens=10) as grant:
        assert grant.deployment == "primary"
    before = await connection.command("HGET", connection.keys.key("limits"), "@version")
    async with opened(limits={"primary": fields}):
        pass

    assert await books.used("tpm") == 10
    # The same limits, stated there and here, are the same to Redis.
    assert await connection.command("HGET", connection.keys.key("limits"), "@version") == before


async def test_a_closed_limiter_says_so(limiter: Limiter, books: Books) -> None:
    """Who waits when it is closed, or comes later, gets a RuntimeError, not silence."""
    await books.warm(tpm=0)
    async with limiter.reserve(tokens=0):
        await limiter.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await limiter.reserve(tokens=1).__aenter__()
    await limiter.aclose()


async def test_classes_give_way_as_in_the_pipeline() -> None:
    """A class of the limiter stands where the same class of the pipeline does."""
    text = load("budget_reserve").text
    found = re.search(r"GIVES_WAY = \{\[0\] = (\d+), \[1\] = (\d+), \[2\] = (\d+)\}", text)

    assert found
    assert tuple(map(float, found.groups())) == GIVES_WAY_WINDOWS
