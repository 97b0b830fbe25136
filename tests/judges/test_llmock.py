"""A provider simulator that we did not write confirms it: twelve worker processes at its limit meet no 429.

Three pools of twelve workers work side by side for nearly two minutes, each with a key of its own that uncoordinated
clients had used up just before, and with more work than its limit allows. All claims are read from llmock's journal.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Literal, NamedTuple

import openai
import pytest

from tests.integration.rig import Rig, open_rig
from tests.judges.llmock_server import Llmock, Record, llmock
from tests.judges.load import LEASE_S, WORKERS, grants_started
from tokenweir.terms import Enforcement
from tokenweir.wire import Result

pytestmark = pytest.mark.slow

RPM, TPM, WINDOW_S = 360, 120_000, 60.0


class Pool(NamedTuple):
    """Twelve workers, their preset, and which limit their load is short of."""

    name: str
    preset: Enforcement
    short_of: Literal["requests", "tokens"]

    @property
    def key(self) -> str:
        return f"sk-{self.name}-0123456789"

    @property
    def least_used(self) -> float:
        """What must be used of any window. Of tokens a tenth is held back for half a window now and then, and let go
        at once, to see whether unused ones come back (`settlement = auto`)."""
        return 0.9 if self.short_of == "requests" else 0.85

    def cost(self, record: Record) -> float:
        """What a call takes of the limit that is short, as a share of it."""
        return 1 / RPM if self.short_of == "requests" else record.tokens / TPM


# The first takes longest: after a cold start its large burst keeps it closed for half a window.
POOLS = (
    Pool("continuous", "continuous", "requests"),
    Pool("tokens", "auto", "tokens"),
    Pool("requests", "auto", "requests"),
)
each_pool = pytest.mark.parametrize("pool", POOLS, ids=[pool.name for pool in POOLS])


class Played(NamedTuple):
    """One pool's run: what llmock saw of it and of the clients before it, and what our side says."""

    journal: list[Record]
    uncoordinated: list[Record]
    ids: list[str]
    results: list[Result]
    grants: float


def _prompt(id_: str, digits: int, draw: random.Random) -> str:
    """A prompt of which a real tokenizer counts no fewer tokens than llmock, by bytes, with the body around it."""
    return f"[{id_}] " + "".join(draw.choices("0123456789", k=digits))


def _add(rig: Rig, pool: Pool) -> list[str]:
    """Work for more than a window."""
    draw, ids, share = random.Random(pool.name), list[str](), 0.0
    pipe = rig.redis.pipeline(transaction=False)
    while share < 1.2:
        ids.append(f"{pool.name}-{len(ids)}")
        cap = draw.randint(2, 40) if pool.short_of == "requests" else draw.randint(100, 1100)
        prompt = _prompt(ids[-1], 300, draw)
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": cap}
        pipe.xadd(rig.keys.key("ingest"), {"id": ids[-1], "body": json.dumps(body), "complexity": "complex"})
        share += 1 / RPM if pool.short_of == "requests" else (110 + cap) / TPM
    pipe.execute()
    return ids


async def _uncoordinated(server: Llmock, pool: Pool) -> None:
    """Twelve clients that know nothing of each other call until each has had a 429."""
    cap = 5 if pool.short_of == "requests" else 1000

    async def client() -> None:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key=pool.key, max_retries=0) as calling:
            while True:
                try:
                    await calling.chat.completions.create(
                        model=_alone(pool.name), messages=[{"role": "user", "content": "and now?"}], max_tokens=cap
                    )
                except openai.RateLimitError:
                    return

    async with asyncio.timeout(60):
        await asyncio.gather(*(client() for _ in range(WORKERS)))


@pytest.fixture(scope="module")
def played() -> Iterator[dict[str, Played]]:
    """All pools at the same time, each begun at a moment when its key has nothing left."""
    with llmock(rpm=RPM, tpm=TPM) as server, ExitStack() as stack:
        rigs: dict[str, Rig] = {}
        ids: dict[str, list[str]] = {}
        for pool in POOLS:
            call = {"base_url": server.base_url, "api_key": pool.key, "model": pool.name, "rpm": RPM, "tpm": TPM}
            call |= {"window_s": WINDOW_S, "send_within_s": 1.0, "enforcement": pool.preset}
            if rigs:
                rig = next(iter(rigs.values())).configure(pool.name, call=call)
            else:
                rig = stack.enter_context(open_rig(pool=pool.name, lease_s=LEASE_S, call=call))
            # Before the workers start: what was spent by others afterwards would be foreign use of the key.
            asyncio.run(_uncoordinated(server, pool))
            rig.run(WORKERS)
            rigs[pool.name], ids[pool.name] = rig, _add(rig, pool)
        yield {pool.name: _outcome(server, rigs[pool.name], ids[pool.name]) for pool in POOLS}


def _outcome(server: Llmock, rig: Rig, ids: list[str]) -> Played:
    results = rig.wait_for(ids, 150)
    rig.assert_clean()
    name = rig.keys.pool
    return Played(server.journal(name), server.journal(_alone(name)), ids, results, grants_started(rig))


def _alone(name: str) -> str:
    """The model that clients without a gate ask for, so that llmock's journal tells them apart."""
    return f"{name}-alone"


def _windows(records: Sequence[Record], pool: Pool) -> list[float]:
    """What each window holds that begins with a call and ends before the last one, as a share of the limit."""
    at = [record.started_at for record in records]
    costs = [pool.cost(record) for record in records]
    whole = [begin for begin in at if begin + WINDOW_S <= at[-1]]
    return [
        sum(cost for moment, cost in zip(at, costs, strict=True) if begin <= moment < begin + WINDOW_S)
        for begin in whole
    ]


@each_pool
def test_twelve_workers_meet_no_429(played: dict[str, Played], pool: Pool) -> None:
    """llmock answered each call with 200, it saw exactly the granted ones, and each request has one answer."""
    run = played[pool.name]
    assert {(record.status, record.fault, record.completed) for record in run.journal} == {(200, None, True)}
    assert len(run.journal) == run.grants == len(run.ids)
    assert {(result.status, result.route, result.attempt) for result in run.results} == {("ok", "premium", 1)}


@each_pool
def test_the_limit_is_used_while_work_waits(played: dict[str, Played], pool: Pool) -> None:
    """Of every window in which work waited at least 90 % (of tokens: 85 %) was used, and never more than all."""
    journal = played[pool.name].journal
    shares, length_s = _windows(journal, pool), journal[-1].started_at - journal[0].started_at
    print(f"{pool.name}: {len(journal)} calls in {length_s:.1f} s, windows used {min(shares):.3f} to {max(shares):.3f}")
    assert len(shares) > 10
    assert min(shares) >= pool.least_used
    assert max(shares) <= 1


@each_pool
def test_uncoordinated_clients_do_meet_429s(played: dict[str, Played], pool: Pool) -> None:
    """The same llmock refuses twelve clients without a gate, with the same keys: so it would have refused ours."""
    run = played[pool.name]
    refused = [record.fault for record in run.uncoordinated if record.status == 429]
    assert len(refused) >= WORKERS
    assert f"ratelimit:{pool.short_of}" in refused
    assert max(record.started_at for record in run.uncoordinated) < run.journal[0].started_at
