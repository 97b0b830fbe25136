"""Redis restarts, hangs, forgets: workers stay, come back by themselves, and lose nothing that Redis kept."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig
from tests.support import server_kinds
from tokenweir.keys import GROUPS

pytestmark = pytest.mark.slow

# Outages a second and worker, logged at their start, that would be a hot loop.
_HOT = 20


@pytest.fixture(scope="module", params=server_kinds()[:2])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Two workers, on Valkey and on the oldest Redis that is served."""
    with open_rig(kind=request.param, sandbox={"ttft_mean_s": 2.0, "ttft_p99_s": 4.0}) as opened:
        opened.run(2)
        opened.ask("the first one warms up")
        yield opened


@pytest.fixture(autouse=True)
def _same_workers(rig: Rig) -> Iterator[None]:
    """Nothing that Redis does ends a worker, makes it log without end, or leaves anything undone."""
    pids, said, began = rig.runs[0].live, len(rig.runs[0].text.splitlines()), time.monotonic()
    yield
    rig.assert_clean()
    assert rig.runs[0].live == pids
    lines = rig.runs[0].text.splitlines()[said:]
    outages = [line for line in lines if '"redis_outage_began"' in line]
    assert len(outages) / (time.monotonic() - began) < _HOT * len(pids), outages[:10]
    assert not [line for line in lines if "Traceback" in line or "stage_failed" in line]


def test_c12_a_restart_with_the_same_data_loses_nothing(rig: Rig) -> None:
    """Redis is ended and started again under load: every loop reconnects, each request gets one result."""
    before = rig.add_many(60)
    rig.wait_for_count(len(rig.results) + 10)

    rig.store.stop()
    rig.store.start()

    results = rig.wait_for([*before, *rig.add_many(20)])
    assert {result.status for result in results} == {"ok"}


def test_c12_killed_connections_are_made_again(rig: Rig) -> None:
    """All connections are cut five times under load: one result each, and no loop stays behind."""
    ids = rig.add_many(100)
    for _ in range(5):
        rig.wait_for_count(len(rig.results) + 10)
        rig.command("CLIENT", "KILL", "TYPE", "normal")

    assert {result.status for result in rig.wait_for(ids)} == {"ok"}
    assert rig.ask("[after] still there?").status == "ok"


def test_a_redis_that_hangs_is_waited_for(rig: Rig) -> None:
    """Redis stands still for a lease under load: no call is paid for that nobody granted, one result each."""
    ids = rig.add_many(60)
    rig.wait_for_count(len(rig.results) + 10)

    os.kill(rig.store.pid, signal.SIGSTOP)
    until = time.monotonic() + 2
    wait_until(lambda: time.monotonic() >= until)
    os.kill(rig.store.pid, signal.SIGCONT)

    assert {result.status for result in rig.wait_for(ids)} == {"ok"}
    assert rig.book().premium.rejected == 0


def test_c03_an_emptied_redis_is_filled_again(rig: Rig) -> None:
    """FLUSHALL while idle: groups and limits are made again, ten new requests have their results within 5 s."""
    made = rig.metric("tokenweir_groups_made_total")
    rig.command("FLUSHALL")
    rig.forget()

    results = rig.wait_for([rig.add(f"[flushed] {i}", complexity="complex") for i in range(10)], timeout_s=5)

    assert {(result.status, result.route) for result in results} == {("ok", "premium")}
    wait_until(lambda: rig.metric("tokenweir_groups_made_total") >= made + len(GROUPS), why="groups aren't counted")
    assert rig.redis.hexists(rig.keys.key("limits"), "primary")
    assert len(rig.runs[0].events("limits_put_in_place_again")) >= 1


def test_c03_an_emptied_redis_under_load_serves_what_comes_after(rig: Rig) -> None:
    """FLUSHALL with every hand full: what it wiped out is lost, what is added afterwards is served within 5 s."""
    rig.add_many(100, complexity="complex")
    wait_until(lambda: len(rig.owners("premium")) >= 32, 10)
    rig.command("FLUSHALL")
    rig.forget()

    results = rig.wait_for([rig.add(f"[flushed] {i}") for i in range(10)], timeout_s=5)

    assert {result.status for result in results} == {"ok"}


@pytest.mark.parametrize("lane", ["gate:interactive", "premium", "edge", "deferred"])
def test_c03_a_destroyed_group_is_made_again(rig: Rig, lane: str) -> None:
    """XGROUP DESTROY of an inner stage under load: the group is made again at the start, nothing is lost."""
    ids = rig.add_many(60)
    rig.wait_for_count(len(rig.results) + 5)

    rig.command("XGROUP", "DESTROY", rig.keys.key(lane), GROUPS[lane])

    results = rig.wait_for([*ids, *(rig.add(f"[made again] {i}") for i in range(10))])
    assert {result.status for result in results} == {"ok"}


@pytest.mark.parametrize("lane", ["ingest", "gate:batch", "premium"])
def test_c03_a_reader_survives_its_stream(rig: Rig, lane: str) -> None:
    """DEL of a stream that idle readers wait on: requests added after it are served within 5 s."""
    rig.command("DEL", rig.keys.key(lane))

    ids = [rig.add(f"[after] {i}", class_="batch", complexity="complex") for i in range(10)]

    assert {result.status for result in rig.wait_for(ids, timeout_s=5)} == {"ok"}


def test_c25_scripts_that_redis_forgot_are_sent_again(rig: Rig) -> None:
    """SCRIPT FLUSH under load is noticed by nobody."""
    ids = rig.add_many(60)
    for _ in range(3):
        rig.wait_for_count(len(rig.results) + 10)
        rig.command("SCRIPT", "FLUSH")

    assert {result.status for result in rig.wait_for(ids)} == {"ok"}
    assert "redis_outage_began" not in rig.runs[0].text.splitlines()[-30:]
