"""The books over HTTP, and agreement between enforcement and ledger under load."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import openai
import pytest

from pipeline.sandbox.settings import Enforcement
from pipeline.sandbox.tokens import prompt_tokens

if TYPE_CHECKING:
    from tests.sandbox.conftest import Bench, Open

pytestmark = pytest.mark.anyio


async def test_calls_can_be_counted_by_prompt(bench: Bench) -> None:
    """A test can ask how often a request reached the provider, and read on from where it stopped."""
    await bench.ask("first " * 30, max_tokens=7)
    page = await bench.calls()
    await bench.ask("second", max_tokens=7)
    await bench.ask("second", max_tokens=7, stream=True)
    await bench.edge("third")

    later = await bench.calls(page.next)

    assert [(call.prompt, call.side) for call in page.calls] == [(("first " * 30)[:60], "premium")]
    assert [(call.prompt, call.side) for call in later.calls][::2] == [("second", "premium"), ("third", "edge")]
    assert len({call.prompt_hash for call in (*page.calls, *later.calls)}) == 3
    assert page.calls[0].tokens == prompt_tokens(["first " * 30]) + 7
    assert (page.calls[0].status, page.calls[0].fate, page.calls[0].stream) == (200, "answered", False)


async def test_ranges_are_on_the_systems_monotonic_clock(bench: Bench) -> None:
    """A test's own clock reading cuts the ledger where the test stood."""
    await bench.ask(max_tokens=10)
    between = time.monotonic()
    await bench.ask(max_tokens=20)
    after = time.monotonic()

    first = (await bench.book(f"?to={between}")).premium.range.used
    second = (await bench.book(f"?from={between}&to={after}")).premium.range.used

    each = prompt_tokens(["Where is my parcel?"])
    assert (first.requests, first.tokens) == (1, each + 10)
    assert (second.requests, second.tokens) == (1, each + 20)


@pytest.mark.parametrize("mode", ["bucket", "sliding"])
async def test_books_agree_with_what_callers_saw(opened: Open, mode: Enforcement) -> None:
    """Under overload the ledger counts exactly the answers and the 429s that callers got."""
    bench = await opened(rpm=30, tpm=100_000, window_s=3600, enforcement=mode)

    async def attempt() -> bool:
        try:
            await bench.ask(max_tokens=5)
        except openai.RateLimitError:
            return False
        return True

    async with asyncio.TaskGroup() as group:
        attempts = [group.create_task(attempt()) for _ in range(50)]
    served = sum(attempt.result() for attempt in attempts)

    book = (await bench.book()).premium
    assert (served, book.admitted, book.rejected) == (30, 30, 20)
    assert book.worst_window.requests == 1.0
    assert book.fates == {"answered": 30, "refused": 20}
    assert sum(second[1] for second in book.per_second) == 30


async def test_reset_forgets_everything(opened: Open) -> None:
    """After a reset the account is fresh: budget, books, calls and faults."""
    bench = await opened(rpm=1, window_s=3600)
    await bench.ask()
    await bench.order({"kind": "hang", "times": 9})

    async with bench.http.post(f"{bench.urls.control}/reset") as response:
        assert response.status == 200

    await bench.ask()
    book = (await bench.book()).premium
    assert (book.calls, book.rejected) == (1, 0)
    assert [call.seq for call in (await bench.calls()).calls] == [1]


async def test_calls_in_flight_dont_outlive_a_reset(bench: Bench) -> None:
    """A call from before the reset ends unseen: the new books hold only what came after."""
    await bench.order({"kind": "slow:60"})
    async with asyncio.TaskGroup() as group:
        old = group.create_task(bench.ask("old"))
        await bench.until(lambda book, _calls: book.premium.open == 1)
        async with bench.http.post(f"{bench.urls.control}/reset") as response:
            assert response.status == 200
        await bench.ask("new")
        old.cancel()

    await bench.until(lambda book, _calls: book.premium.open == 0)
    assert (await bench.book()).premium.fates == {"answered": 1}


@pytest.mark.parametrize("body", ["{", '{"kind":"hang"}', '[{"kind":"explode"}]', '[{"kind":"hang","tymes":1}]'])
async def test_a_misspelt_fault_is_refused(bench: Bench, body: str) -> None:
    """A wrong order says what is wrong, and nothing of it is taken up."""
    async with bench.http.post(f"{bench.urls.control}/faults", data=body) as response:
        assert (response.status, list(await response.json())) == (400, ["error"])
    async with bench.http.get(f"{bench.urls.control}/faults") as response:
        assert await response.json() == []


@pytest.mark.parametrize("path", ["ledger?from=x", "ledger?to=yesterday", "calls?since=x"])
async def test_a_misspelt_query_is_refused(bench: Bench, path: str) -> None:
    """A range that isn't one is an error, not the whole book."""
    async with bench.http.get(f"{bench.urls.control}/{path}") as response:
        assert response.status == 400
