"""Nobody wants the answer any more: calls are closed, as their provider sees it, and each request has one result."""

from __future__ import annotations

import asyncio
import json
import random
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.sandbox.calls import Call
from pipeline.sandbox.control import CallPage
from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig
from tokenweir import Client
from tokenweir.wire import Result

# A judge that takes 20 s for a hundred pieces, and as long for an edge answer.
SLOW = {"tokens_per_second": 0.85, "pieces": 100, "edge_mean_s": 200.0, "edge_p99_s": 210.0}
LONG = json.dumps({"messages": [{"role": "user", "content": "Tell me everything."}], "max_tokens": 250})
WITHIN_S = 1.0
# One of these ends a call before its time; `deadline` is of the request itself.
HOW = ("cancel", "deadline")


async def _cancel(rig: Rig, *ids: str) -> list[Result | None]:
    async with Client(rig.store.url, pool=rig.keys.pool) as client:
        return await client.cancel_many(ids)


def cancel(rig: Rig, *ids: str) -> list[Result | None]:
    """Cancel requests, as an application does."""
    return asyncio.run(_cancel(rig, *ids))


def calls(rig: Rig, side: str = "premium") -> list[Call]:
    """The calls as their provider saw them; its clock is ours."""
    with urllib.request.urlopen(f"{rig.sandbox.control}/calls", timeout=10) as reply:
        page = msgspec.json.decode(reply.read(), type=CallPage)
    return [call for call in page.calls if call.side == side and call.prompt]


def connected(url: str) -> int:
    """How many connections to a provider's port are open, by the kernel's books."""
    port = f"{int(url.split(':')[2].split('/')[0]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port}") and row[3] == "01" for row in rows)


def ended(rig: Rig, request_id: str, how: str, began_s: float) -> tuple[float, Result]:
    """When the request was cancelled, or its two seconds were over, and its result."""
    if how == "cancel":
        now_s = time.monotonic()
        (result,) = cancel(rig, request_id)
        assert result is not None
        assert result.status == "cancelled"
    else:
        now_s = began_s + 2
    return now_s, rig.wait_for([request_id], 10)[0]


def asked(rig: Rig, how: str, **fields: Any) -> tuple[float, str]:
    """A request with metadata, under a deadline of 2 s or none, and when it was made."""
    if how == "deadline":
        fields["max_wait"] = 2
    began_s = time.monotonic()
    return began_s, rig.add_raw({"id": f"one-{how}", "metadata": '{ "ticket": 7 }', "stream": 1, **fields})


@pytest.fixture(scope="module")
def premium() -> Iterator[Rig]:
    """A worker at a slow provider that takes one call at a time."""
    with open_rig(pool="gone", sandbox=SLOW, call={"max_in_flight": 1}) as rig:
        rig.run()
        yield rig


@pytest.fixture(scope="module")
def edge() -> Iterator[Rig]:
    """A worker at a slow local model that takes one call at a time."""
    with open_rig(pool="edge", sandbox=SLOW, edge={"concurrency": 1, "queue": 3}) as rig:
        # Without a premium stage there are no premium slots: simple work goes to the edge.
        rig.run(1, "--stages", "classify,gate,edge,deferred")
        wait_until(lambda: rig.redis.exists(rig.keys.key("edge:alive")), 10, why="the edge doesn't come up")
        yield rig


@pytest.mark.parametrize("how", HOW)
def test_c73_the_asker_of_a_paid_call_is_gone(premium: Rig, how: str) -> None:
    """The provider sees the call closed within a second; it is paid for, its place is free, and nothing is left."""
    rig, before = premium, len(calls(premium))
    closed = rig.metric("tokenweir_provider_calls_total", outcome="closed")
    began_s, request_id = asked(rig, how, body=LONG)
    wait_until(lambda: rig.redis.xlen(rig.keys.reply(request_id)) > 2, 10, why="the model doesn't speak")
    received = int(rig.redis.xlen(rig.keys.reply(request_id)))

    now_s, result = ended(rig, request_id, how, began_s)

    wait_until(lambda: calls(rig)[-1].fate != "open", 5, why="the call isn't closed")
    call = calls(rig)[-1]
    assert (len(calls(rig)), call.fate) == (before + 1, "gone")
    assert -0.01 < call.end_s - now_s < WITHIN_S
    status, code = ("cancelled", "cancelled") if how == "cancel" else ("expired", "deadline_exceeded")
    assert (result.status, result.code, result.route) == (status, code, "premium")
    assert bytes(result.metadata) == b'{ "ticket": 7 }'
    assert result.total_ms >= 100
    assert received < 100
    wait_until(lambda: not rig.budget().get("in_flight"), 5, why="its place isn't free")
    # What was reserved for it, of the prompt and the longest answer, is more than what came.
    assert rig.budget()["tpm.used"] >= call.tokens > 250
    wait_until(lambda: not connected(rig.sandbox.premium), 5, why="a connection is left")
    assert rig.metric("tokenweir_provider_calls_total", outcome="closed") == closed + 1
    rig.assert_clean()
    # Whoever waits for that place gets it.
    behind = rig.add_raw({"id": f"behind-{how}", "body": LONG})
    wait_until(lambda: len(calls(rig)) == before + 2, 10, why="nobody else is served")
    cancel(rig, behind)
    rig.assert_clean()


@pytest.mark.parametrize("how", HOW)
def test_the_asker_of_a_local_call_is_gone(edge: Rig, how: str) -> None:
    """An edge call is closed within a second as well, and those that wait for its slot aren't called for in vain."""
    rig = edge
    began_s, request_id = asked(rig, how, prompt=how, complexity="simple")
    wait_until(lambda: how in [call.prompt for call in calls(rig, "edge")], 10, why="no edge call")
    behind = [rig.add("behind", complexity="simple") for i in range(2)]
    wait_until(lambda: rig.redis.xlen(rig.keys.key("edge")) == 3, 5, why="they don't queue")
    assert [result.status for result in cancel(rig, *behind) if result] == ["cancelled"] * 2

    now_s, result = ended(rig, request_id, how, began_s)

    wait_until(lambda: calls(rig, "edge")[-1].fate != "open", 5, why="the call isn't closed")
    call = calls(rig, "edge")[-1]
    assert (call.prompt, call.fate) == (how, "gone")
    assert -0.01 < call.end_s - now_s < WITHIN_S
    assert result.status == ("cancelled" if how == "cancel" else "expired")
    rig.assert_clean()
    assert "behind" not in [call.prompt for call in calls(rig, "edge")]


def test_a_cancelled_request_gets_no_further_attempt() -> None:
    """While a request waits for its next attempt at a failing provider, cancelling it is its end."""
    with open_rig(pool="retries") as rig:
        rig.order(kind="status:503", match="never", times=None)
        rig.run()
        request_id = rig.add("never", complexity="complex")
        status = rig.keys.status(request_id)
        wait_until(lambda: rig.redis.hget(status, "attempt") == b"2", 10, why="it isn't tried again")

        (result,) = cancel(rig, request_id)

        assert result is not None
        assert (result.status, result.attempt) == ("cancelled", 2)
        rig.assert_clean()
        assert len(calls(rig)) == 1


def test_cancelled_at_any_moment() -> None:
    """Of a thousand requests three hundred are cancelled somewhere on their way: one result each, no call too many."""
    chance = random.Random(7)
    with open_rig(pool="storm", rpm=600, tpm=60_000, edge={"concurrency": 2, "queue": 4}) as rig:
        rig.run(3)
        ids = rig.add_many(1000)
        # Each when so many have ended.
        wanted = sorted((chance.randrange(800), request_id) for request_id in chance.sample(ids, 300))
        told: dict[str, str] = {}

        while wanted:
            due = [request_id for at, request_id in wanted if at <= len(rig.results)]
            told |= {result.id: result.status for result in cancel(rig, *due) if result}
            wanted = wanted[len(due) :]
            rig.read(20)

        ends = {result.id: result.status for result in rig.wait_for(ids, 60)}
        rig.assert_clean(20)
        assert {request_id: ends[request_id] for request_id in told} == told
        counts = Counter(ends.values())
        assert counts["ok"] + counts["cancelled"] == 1000
        assert 100 < counts["cancelled"] == Counter(told.values())["cancelled"]
        assert not rig.budget().get("in_flight")
        started = rig.metric("tokenweir_provider_calls_total", outcome="started")
        not_made = len(rig.runs[-1].events("call_not_made_in_time"))
        # The call of a cancelled request may have been closed, or left unmade, before the provider saw it.
        assert started - not_made - counts["cancelled"] <= rig.book().premium.calls <= started - not_made
        assert rig.book().premium.rejected == 0
