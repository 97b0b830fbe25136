"""Releases before and after this one work on the same packed budget: nobody grants what another one couldn't count."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.script.arithmetic import Arithmetic, limits_of, warm
from tests.script.bench import SECOND_US, Bench

# What a budget can't be read without; everything else came later, or is written only where it differs from its default.
CORE = {"at", "limits"}
CORE_OF_LIMIT = {"level", "used", "slot_us", "first", "charges"}
LATER = ("born", "factor", "server", "granted", "in_flight", "why", "cum", "gross", "net", "spare")
LIMITS = limits_of(rpm=100, tpm=10_000)
COST = {"rpm": 1, "tpm": 400}


@settings(max_examples=60, deadline=None)
@given(
    missing=st.sets(st.sampled_from(LATER)),
    added=st.booleans(),
    gone_s=st.integers(0, 70),
)
def test_c67_a_budget_of_another_release_is_read_on_the_safe_side(missing: set[str], added: bool, gone_s: int) -> None:
    """Fields that an older release didn't write, or a newer one added, change no level and no window."""
    (ours, now), (other, _) = warm(*LIMITS), warm(*LIMITS)
    for budget in (ours, other, ours, other):
        assert budget.acquire(now, COST) == 0
    other.move("first", _edited(other, missing=missing, added=added))
    now += gone_s * SECOND_US

    for index in (1, 2):
        assert other.level(now, index) <= ours.level(now, index)
        assert other.used(now, index) == ours.used(now, index)
    while (wait_us := other.acquire(now, COST)) <= 0:
        assert ours.acquire(now, COST) == 0, "granted what the whole budget wouldn't have"
    assert wait_us >= ours.wait(now, COST)


def _edited(budget: Arithmetic, *, missing: set[str], added: bool) -> Any:
    """The packed budget without some fields, with some that nobody here knows."""
    kept: Any = budget.snapshot()
    for table, core in ((kept, CORE), *((limit, CORE_OF_LIMIT) for limit in kept["limits"].values())):
        for name in missing - core:
            table[name] = None
        if added:
            table["of_a_newer_release"] = 7
    return kept


def test_c67_a_limit_that_only_newer_workers_can_count_closes_the_deployment_for_others() -> None:
    """Who doesn't know what a limit counts grants nothing, says when to look again, and keeps what others know."""
    budget, now = warm(*LIMITS)
    kept: Any = budget.snapshot()
    kept["limits"]["cpm"] = kept["limits"]["tpm"]
    level = kept["limits"]["cpm"]["level"]
    budget.move("first", kept)
    budget.change((*LIMITS, msgspec.structs.replace(LIMITS[1], name="cpm")))

    for _ in range(3):
        assert 0 < budget.acquire(now, COST) <= SECOND_US

    assert float(budget.stored("cpm.level")) == level
    budget.change(LIMITS)
    assert budget.acquire(now, COST) == 0


@pytest.mark.anyio
async def test_c67_work_that_only_newer_workers_may_grant_waits_for_them(bench: Bench) -> None:
    """At the gate of an older release it goes to the backlog, and the older drain leaves it there."""
    stated = msgspec.json.decode(await bench.redis("HGET", bench.keys.key("limits"), "primary"))
    stated["limits"].append(stated["limits"][0] | {"name": "cpm"})
    await bench.redis("HSET", bench.keys.key("limits"), "primary", msgspec.json.encode(stated))

    assert await bench.send(bench.request("a")) == ["deferred"]
    drained = await bench.drain(*await bench.notices())
    assert (drained.premium, 0 < drained.wait_us <= SECOND_US) == (0, True)

    stated["limits"].pop()
    await bench.redis("HSET", bench.keys.key("limits"), "primary", msgspec.json.encode(stated))
    await bench.advance(1)
    assert (await bench.drain(drained.kept)).premium == 1
