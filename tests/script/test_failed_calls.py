"""What becomes of calls that failed, and of the deployment at which they did."""

from __future__ import annotations

import msgspec
import pytest

from pipeline.store.rows import result_row
from tests.script import views
from tests.script.bench import PRIMARY, SECOND_US, Bench
from tests.script.views import called
from tokenweir.connection import Argument
from tokenweir.keys import GROUPS
from tokenweir.wire import Result

pytestmark = pytest.mark.anyio


async def test_a_failed_attempt_comes_again_and_its_charge_stands(bench: Bench) -> None:
    """A failed call may have been counted by the provider: its charge stays, and the next attempt has its own."""
    (call,) = await called(bench, "a")

    assert await bench.retry(call) == 1

    assert await bench.redis("EXISTS", bench.keys.key("grants")) == 0
    assert (await bench.drain(*await bench.notices())).premium == 1
    assert await views.budget(bench) == (2, 200, 2, 200)
    assert (await views.status(bench, "a"))["attempt"] == "2"


async def test_a_repeated_retry_adds_nothing(bench: Bench) -> None:
    """When the reply to a retry is lost, the request still waits once, and its tenant isn't locked out."""
    (call,) = await called(bench, "a")
    assert await bench.retry(call, wait_s=5, pause_s=5) == 1
    before = await views.snapshot(bench)

    assert await bench.retry(call, wait_s=5, pause_s=5) == 0

    assert await views.snapshot(bench) == before


async def test_a_pause_closes_the_deployment_for_all(bench: Bench) -> None:
    """After a 429 nobody calls before the provider said so, and a shorter pause doesn't shorten a longer one."""
    first, second = await called(bench, "a", "b")
    await bench.retry(first, wait_s=9, pause_s=9)
    await bench.retry(second, wait_s=0, pause_s=3)

    drained = await bench.drain(*await bench.notices())

    assert (drained.premium, drained.wait_us) == (0, 9 * SECOND_US)
    await bench.advance(9)
    after = await bench.drain(drained.kept)
    assert (after.premium, after.wait_us) == (1, 10 * SECOND_US), "one goes first, to see whether it's over"
    await bench.start(probe := await bench.take("premium"))
    await bench.finish(*probe)
    assert (await bench.drain(*await bench.notices())).premium == 1


async def test_a_last_attempt_that_failed_doesnt_end_the_pause(bench: Bench) -> None:
    """The probe has no attempt left and its caller gets an error: the others still don't run into the same wall."""
    (first,) = await called(bench, "a")
    await bench.retry(first, wait_s=0, pause_s=9)
    await bench.send(bench.request("b", tenant="b"))
    await bench.advance(9)
    await bench.drain(*await bench.notices())
    await bench.start(probe := await bench.take("premium"))

    assert await bench.finish(*probe, pause_s=60, status="error", code="quota_exhausted") == [1]

    drained = await bench.drain(*await bench.notices())
    assert (drained.premium, drained.wait_us) == (0, 60 * SECOND_US)


async def test_a_last_attempt_of_a_broken_provider_decides_nothing(bench: Bench) -> None:
    """A probe that ended in a 500 says neither that the pause is over nor that it goes on: another one tries."""
    (first,) = await called(bench, "a")
    await bench.retry(first, wait_s=0, pause_s=9)
    await bench.send(bench.request("b", tenant="b"))
    await bench.advance(9)
    await bench.drain(*await bench.notices())
    await bench.start(probe := await bench.take("premium"))

    await bench.finish(*probe, pause_s=0, status="error", code="provider_unavailable")

    assert (await bench.drain(*await bench.notices())).wait_us == 10 * SECOND_US
    await bench.advance(10)
    assert (await bench.drain()).premium == 1


async def test_what_a_provider_refunds_is_told(bench: Bench) -> None:
    """Tokens that come back are counted where they were reserved, prompt and output apart."""
    await bench.seed([msgspec.structs.replace(PRIMARY, settlement="refund")])
    (first,) = await called(bench, "a")

    args: list[Argument] = [GROUPS["premium"], 1000, 3600, first.entry, 1, 50, 15, -1, "", 0]
    args += result_row(Result(id="a", status="ok"), streamed=False)

    assert await bench.run("entries_finish", args, lane="premium") == [1, 10, 25]
    assert (await views.budget(bench)).tokens == 65
