"""What can be changed while the sandbox runs, seen through the official client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, get_args

import openai
import pytest

from pipeline.sandbox.answers import Answer
from pipeline.sandbox.settings import Enforcement
from pipeline.sandbox.tokens import prompt_tokens

if TYPE_CHECKING:
    from tests.sandbox.conftest import Bench, Open

pytestmark = pytest.mark.anyio
_PROMPT = "Where is my parcel?"
_UNUSED = 100 - Answer.to(_PROMPT, cap=100, seed=1).tokens  # of a cap of 100


async def _headers(bench: Bench, **more: Any) -> Any:
    raw = await bench.openai.chat.completions.with_raw_response.create(
        model="gpt-4o", messages=[{"role": "user", "content": _PROMPT}], **{"max_tokens": 100, **more}
    )
    return raw.headers


async def _refusal(bench: Bench, **more: Any) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as caught:
        await bench.ask(_PROMPT, **more)
    return caught.value


async def test_a_provider_can_begin_and_stop_to_refund(opened: Open) -> None:
    """At first the whole cap counts; then what an answer left of it is free again; then no more."""
    bench = await opened(rpm=100, tpm=10_000, window_s=3600)
    each = prompt_tokens([_PROMPT]) + 100
    assert _UNUSED > 0

    async def left() -> int:
        return int((await _headers(bench))["x-ratelimit-remaining-tokens"])

    assert [await left(), await left()] == [10_000 - each, 10_000 - 2 * each]
    await bench.change(refund=True)
    assert [await left(), await left()] == [10_000 - 3 * each, 10_000 - 4 * each + _UNUSED]
    await bench.change(refund=False)
    assert [await left(), await left()] == [10_000 - 5 * each + 2 * _UNUSED, 10_000 - 6 * each + 2 * _UNUSED]

    book = (await bench.book()).premium
    assert (book.refunded, book.total.tokens) == (2 * _UNUSED, 6 * each)


@pytest.mark.parametrize("mode", get_args(Enforcement))
async def test_streams_are_refunded_too_and_broken_ones_arent(opened: Open, mode: Enforcement) -> None:
    """A whole stream gives its rest back when it has ended; a cut one said no usage, so all of it counts."""
    bench = await opened(rpm=1000, tpm=100_000, window_s=3600, refund=True, enforcement=mode)

    await bench.order({"kind": "cut"})
    for _ in range(2):
        _ = [chunk async for chunk in await bench.ask(_PROMPT, max_tokens=100, stream=True)]

    await bench.until(lambda book, _calls: book.premium.refunded == _UNUSED)


async def test_a_smaller_window_shows_in_the_worst_one(opened: Open) -> None:
    """The worst window counts what the account counted: what was given back is out of it."""
    bench = await opened(rpm=100, tpm=1000, window_s=3600, refund=True)
    each = prompt_tokens([_PROMPT]) + 100

    for _ in range(3):
        await bench.ask(_PROMPT, max_tokens=100)

    assert (await bench.book()).premium.worst_window.tokens == (3 * each - 2 * _UNUSED) / 1000


async def test_too_many_calls_at_a_time_are_refused(opened: Open) -> None:
    """Beyond max_in_flight: a 429 in words of its own, without a time; free again once a caller hangs up."""
    bench = await opened(max_in_flight=2, rpm=100, tpm=100_000)
    await bench.order({"kind": "hang"}, {"kind": "hang"})

    async with asyncio.TaskGroup() as group:
        hanging = [group.create_task(bench.ask()) for _ in range(2)]
        await bench.until(lambda book, _calls: book.premium.admitted == 2)
        refusal = await _refusal(bench)
        for task in hanging:
            task.cancel()

    assert refusal.status_code == 429
    assert "max concurrency: 2" in refusal.message
    assert "retry-after" not in refusal.response.headers
    await bench.until(lambda book, _calls: book.premium.open == 0)
    await bench.ask()
    assert (await bench.book()).premium.rejected_by == {"max_in_flight": 1}


@pytest.mark.parametrize(
    ("limit", "words"),
    [({"rpm": 1}, "requests per min (RPM)"), ({"rpd": 1}, "requests per day (RPD)"),
     ({"tpd": 600}, "tokens per day (TPD)"), ({"itpm": 14}, "input tokens per min (ITPM)"),
     ({"otpm": 600}, "output tokens per min (OTPM)")],
)  # fmt: skip
async def test_each_dimension_refuses_by_its_name(opened: Open, limit: dict[str, int], words: str) -> None:
    """The 429 names the limit that was hit, and the books count it under its own name."""
    bench = await opened(**{"rpm": 100, "tpm": 100_000, "window_s": 60, **limit})
    await bench.ask(_PROMPT, max_tokens=500)

    refusal = await _refusal(bench, max_tokens=500)

    assert words in refusal.message
    assert (await bench.book()).premium.rejected_by == {next(iter(limit)): 1}


async def test_limits_and_their_enforcement_can_change(opened: Open) -> None:
    """A provider that lowers a limit or counts otherwise does so at once, on fresh budgets; its books go on."""
    bench = await opened(rpm=100, window_s=3600)
    await bench.ask()

    now = await bench.change(rpm=6, enforcement="10s")
    await bench.ask()
    await _refusal(bench)

    book = await bench.book()
    assert (now["rpm"], book.limits["rpm"], book.enforcement) == (6, 6, "10s")
    assert (book.premium.admitted, book.premium.rejected) == (2, 1)
    assert book.premium.worst_window.requests == 1 / 6


async def test_calls_in_flight_belong_to_the_limits_that_admitted_them(opened: Open) -> None:
    """A call that ends after a change of limits takes nothing from the new ones, and gives nothing to them."""
    bench = await opened(rpm=100, max_in_flight=1)
    await bench.order({"kind": "slow:60"})
    async with asyncio.TaskGroup() as group:
        old = group.create_task(bench.ask("old"))
        await bench.until(lambda book, _calls: book.premium.open == 1)
        await bench.change(rpm=50)
        await bench.order({"kind": "slow:60"})
        new = group.create_task(bench.ask("new"))
        await bench.until(lambda book, _calls: book.premium.open == 2)
        old.cancel()
        await bench.until(lambda book, _calls: book.premium.open == 1)

        refusal = await _refusal(bench)
        new.cancel()

    assert "max concurrency: 1" in refusal.message


async def test_another_program_can_come_and_go(opened: Open) -> None:
    """Foreign load is counted apart, takes from the same budget, and stops when told."""
    bench = await opened(rpm=1_000_000, tpm=1_000_000, window_s=1, enforcement="sliding")
    await bench.change(foreign_share=0.5, foreign_tokens=1000)
    await bench.until(lambda book, _calls: book.premium.foreign.admitted > 10)
    await bench.change(foreign_share=0)

    before = (await bench.book()).premium
    await bench.ask()
    after = (await bench.book()).premium

    assert after.foreign == before.foreign
    assert (before.calls, after.calls, after.total.requests) == (0, 1, 1)


async def test_the_dialect_of_headers_can_change(opened: Open) -> None:
    """The same account speaks as another provider from one call to the next."""
    bench = await opened(rpd=50)

    async def names() -> list[str]:
        return sorted(name for name in await _headers(bench) if "ratelimit" in name)

    assert len(await names()) == 6
    await bench.change(headers="azure")
    assert await names() == ["x-ratelimit-remaining-requests", "x-ratelimit-remaining-tokens"]
    await bench.change(headers="anthropic")
    assert len(await names()) == 6
    await bench.change(headers="per-day-requests")
    assert (await _headers(bench))["x-ratelimit-limit-requests"] == "50"
    await bench.change(headers="none")
    assert await names() == []


@pytest.mark.parametrize(
    ("kind", "status", "type_", "code"),
    [("status:429:insufficient_quota", 429, "insufficient_quota", "insufficient_quota"),
     ("status:401:invalid_api_key", 401, "invalid_request_error", "invalid_api_key")],
)  # fmt: skip
async def test_an_account_can_fail_until_told_otherwise(
    bench: Bench, kind: str, status: int, type_: str, code: str
) -> None:
    """Without money or with a bad key every call fails, without a time to come back; until the order is cleared."""
    await bench.order({"kind": kind, "times": None})

    refusals = [await _refusal(bench) for _ in range(3)]
    async with bench.http.delete(f"{bench.urls.control}/faults") as response:
        assert await response.json() == []
    await bench.ask()

    for refusal in refusals:
        assert (refusal.status_code, refusal.type, refusal.code) == (status, type_, code)
        assert "retry-after" not in refusal.response.headers
    assert (await bench.book()).premium.fates == {"fault": 3, "answered": 1}


@pytest.mark.parametrize(
    "body", ["{", "[]", '{"rpm":0}', '{"port":1}', '{"refund":1}', '{"refund":true,"headers":"x"}', '{"rmp":5}',
             '{"headers":"per-day-requests"}'],
)  # fmt: skip
async def test_a_misspelt_change_is_refused(bench: Bench, body: str) -> None:
    """What can't be is named, and nothing of it is taken up."""
    before = await bench.change()
    async with bench.http.post(f"{bench.urls.control}/settings", data=body) as response:
        assert (response.status, list(await response.json())) == (400, ["error"])

    async with bench.http.get(f"{bench.urls.control}/settings") as response:
        assert await response.json() == before


async def test_a_reset_returns_to_the_first_settings(bench: Bench) -> None:
    """Changes are forgotten like everything else."""
    before = await bench.change()
    await bench.change(rpm=1, refund=True, foreign_share=0.5, headers="none")

    async with bench.http.post(f"{bench.urls.control}/reset") as response:
        assert response.status == 200

    assert await bench.change() == before
