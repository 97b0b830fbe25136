"""Workers that die by the hundred: what they held is taken up in time, and their names don't stay."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipeline.outcome import Outcome
from pipeline.stage import Delivery
from tests.chaos.short_lives import __name__ as program
from tests.integration.loops import Steered, add, answer, running
from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig
from tests.support import eventually
from tokenweir.connection import Connection
from tokenweir.keys import Keys

pytestmark = pytest.mark.slow

DEATHS, WORKERS = 300, 3
# The names of the dead are cleared away after ten leases, and not before 5 s.
LEASE_S, CLEARED_S = 0.5, 5.0
# What two busy cores may add to a promise in seconds.
MARGIN_S = 0.5


def _words(what: str, url: str, keys: Keys, lane: str, count: int, lease_s: float) -> list[str]:
    return [sys.executable, "-m", program, what, url, keys.pool, lane, str(count), str(lease_s)]


def _consumers(rig: Rig, lane: str) -> int:
    return len(rig.redis.xinfo_consumers(rig.keys.key(lane), "classify"))


def test_c08_three_hundred_deaths_leave_no_names_and_lose_nothing() -> None:
    """Each of 300 workers reads a request and dies; three live ones answer all, and soon nobody else is listed."""
    with open_rig(lease_s=LEASE_S) as rig:
        ids = rig.add_many(DEATHS)
        subprocess.run(_words("die", rig.store.url, rig.keys, "ingest", DEATHS, 30), check=True, timeout=60)
        assert _consumers(rig, "ingest") == DEATHS
        assert rig.redis.xpending(rig.keys.key("ingest"), "classify")["pending"] == DEATHS

        rig.run(WORKERS)
        results = rig.wait_for(ids, timeout_s=30)

        assert {result.status for result in results} == {"ok"}
        wait_until(lambda: _consumers(rig, "ingest") <= WORKERS, 2 * CLEARED_S, why="the dead are still listed")
        rig.assert_clean()
        assert rig.redis.xlen(rig.keys.key("dead")) == 0
        assert len(rig.runs[0].live) == WORKERS


@contextmanager
def _holding(url: str, keys: Keys, count: int, lease_s: float) -> Iterator[dict[str, int]]:
    """Processes that hold one entry each: their pids by entry."""
    words = _words("hold", url, keys, "edge", count, lease_s)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        lines = [parent.stdout.readline().split() for _ in range(count)]
        pids = {entry: int(pid) for pid, entry in lines}
        try:
            yield pids
        finally:
            for pid in pids.values():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


async def take_up_times(url: str, keys: Keys, connection: Connection, *, deaths: int, lease_s: float) -> list[float]:
    """How long after its holder's death (kill -9) each entry was in other hands, in seconds."""
    died: dict[str, float] = {}
    taken: dict[str, float] = {}
    entries = dict(zip(await add(connection, *(f"r{i}" for i in range(deaths))), range(deaths), strict=True))

    async def take(delivery: Delivery) -> Outcome:
        taken[delivery.entry_id] = time.monotonic()
        return await answer(delivery)

    with _holding(url, keys, deaths, lease_s) as pids:
        assert pids.keys() == entries.keys()
        async with running(url, keys, Steered(take, concurrency=deaths), lease_s=lease_s):
            for entry, pid in random.sample(sorted(pids.items()), deaths):
                # At any phase of its renewals, and of the other's looks.
                at = time.monotonic() + random.uniform(0, lease_s / 4)
                await eventually(lambda at=at: time.monotonic() >= at)
                os.kill(pid, signal.SIGKILL)
                died[entry] = time.monotonic()
            await eventually(lambda: len(taken) == deaths, 5 * lease_s)
    return sorted(taken[entry] - died[entry] for entry in died)


@pytest.mark.anyio
@pytest.mark.leaves_keys("streams of work, which live for ever")
async def test_what_the_dead_held_is_taken_up_within_a_lease_and_a_quarter(
    redis_url: str, keys: Keys, connection: Connection
) -> None:
    """Twenty kills at any moment: each entry is in other hands within a lease, a quarter, and a margin."""
    lease_s = 1.0

    times_s = await take_up_times(redis_url, keys, connection, deaths=20, lease_s=lease_s)

    assert times_s[-1] <= lease_s * 1.25 + MARGIN_S
    # Nobody takes what is still renewed: a lease after the last renewal, a quarter of a lease before the death at most.
    assert times_s[0] >= lease_s * 0.75 - MARGIN_S
