"""Entries that are hard to hold: without a body, or with a very large one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.machine import Ticks
from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig
from tokenweir.keys import GROUPS

pytestmark = pytest.mark.slow

MOST_MB = 300.0
# In JSON a bit less than `max_body_bytes` allows.
FAT = "all work and no play makes a dull day, " * 26_000


@pytest.fixture
def rig() -> Iterator[Rig]:
    """No workers yet; limits that a megabyte fits into."""
    with open_rig(rpm=60_000, tpm=2_000_000_000) as opened:
        yield opened


def _peak_mb(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def test_c06_entries_without_a_body_are_dropped_and_counted(rig: Rig) -> None:
    """A worker died with five entries, and two of them were deleted by hand: three are served, two counted as lost."""
    ids = [rig.add(f"[body {i}]", complexity="complex") for i in range(5)]
    ingest, group = rig.keys.key("ingest"), GROUPS["ingest"]
    rig.command("XGROUP", "CREATE", ingest, group, "0")
    rig.command("XREADGROUP", "GROUP", group, "ghost", "COUNT", 5, "STREAMS", ingest, ">")
    rig.command("XDEL", ingest, *ids[1:3])

    run = rig.run(2)
    results = rig.wait_for([ids[0], *ids[3:]])

    assert {result.status for result in results} == {"ok"}
    wait_until(lambda: rig.metric("tokenweir_lost_entries_total") == 2, 5)
    assert sum(line["count"] for line in run.events("entries_without_body_dropped")) == 2
    assert rig.command("XPENDING", ingest, group)["pending"] == 0
    assert set(rig.results) == {result.id for result in results}
    assert not re.search("Traceback|stage_failed", run.text)
    rig.assert_clean()


@pytest.mark.alone
def test_c49_fat_entries_are_taken_in_few_at_a_time(rig: Rig) -> None:
    """150 requests of 1 MB and one of 12 MB: no worker grows beyond 300 MB, and small ones come through.

    They take less than 2 s where there are cores enough. Here workers, Redis, both providers and this test share two:
    three times as much is allowed, stretched by what others take.
    """
    run = rig.run(1)
    wait_until(lambda: rig.redis.exists(rig.keys.key("edge:alive")), 10)
    rig.wait_for(rig.add_many(50))  # it has seen small ones only

    # Most of them end by their deadline: what is looked at is the way there.
    before = Ticks.of(rig)
    fat = [rig.add(f"[fat {i}] {FAT}", complexity="complex", class_="batch", max_wait="5") for i in range(150)]
    giant = rig.add("x" * 12_000_000)
    small = rig.wait_for([rig.add(f"[small {i}]", task="intent") for i in range(2)])
    slowness = before.slowness(rig)
    large = rig.wait_for([*fat, giant])

    assert {result.status for result in small} == {"ok"}
    assert max(result.total_ms for result in small) < 6000 * slowness
    assert {(result.status, result.code) for result in large[:-1]} <= {("ok", ""), ("expired", "deadline_exceeded")}
    assert large[-1].code == "invalid_request"
    assert max(_peak_mb(pid) for pid in run.live) < MOST_MB
    rig.assert_clean()
