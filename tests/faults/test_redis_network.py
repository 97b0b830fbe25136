"""The network to Redis falls silent, breaks or stalls: workers notice, go on by themselves, and pay nothing twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.faults.proxy import Proxy
from tests.faults.strain import Strain, let_pass, no_hot_loop
from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig
from tokenweir.connection import CALL_TIMEOUT_S

pytestmark = pytest.mark.slow

LEASE_S = 30.0  # the default
WORKERS = 2
WINDOW_S = 30.0  # of the limits: what a test charges is still there at its end


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """Two workers with the default lease, whose only way to Redis is a network that fails on command."""
    limits = {"rpm": 100_000, "tpm": 100_000_000, "window_s": WINDOW_S}
    with open_rig(networks=True, lease_s=LEASE_S, call={**limits, "settlement": "none"}, sandbox=limits) as opened:
        opened.run(WORKERS)
        wait_until(lambda: opened.redis.exists(opened.keys.key("edge:alive")), 10)
        opened.wait_for(opened.add_many(20))
        yield opened


@pytest.fixture
def network(rig: Rig) -> Iterator[Proxy]:
    """That network; faithful again afterwards, with everything served, and by the same workers."""
    pids = rig.runs[0].live
    yield rig.networks.redis
    rig.networks.redis.mend()
    rig.assert_clean(timeout_s=20)
    assert rig.runs[0].live == pids
    assert rig.ask("[after] still there?", timeout_s=5).status == "ok"
    assert rig.book().premium.rejected == 0
    assert "Traceback" not in rig.runs[0].text


def test_c01_idle_readers_stay_quiet(rig: Rig, network: Proxy) -> None:
    """Nothing to do for longer than any timeout there is: no warning, no new connection, few commands, then at once.

    Shortened from 90 s: what could run out are the block time of 2 s, redis-py's own 5 s, and our 10 s for a call.
    """
    before = Strain.of(rig)
    with no_hot_loop(rig, of=("commands",)):
        let_pass(CALL_TIMEOUT_S + 2)
    after = Strain.of(rig)

    result = rig.ask("[idle] awake?", complexity="complex")

    assert (after.connections, after.lines) == (before.connections, before.lines)
    assert result.status == "ok"
    assert result.waited_ms < 300


def test_c02_lost_replies_leave_nothing_behind(rig: Rig, network: Proxy) -> None:
    """Each reply of Redis is lost for 1 s, again and again: every request has one result, none waits for its lease."""
    ids: list[str] = []
    with no_hot_loop(rig):
        for _ in range(4):
            ids += rig.add_many(125)
            network.lose_replies(1_000_000)
            let_pass(1)
            network.mend()
            let_pass(1)
        results = rig.wait_for(ids, timeout_s=LEASE_S)

    assert {result.status for result in results} == {"ok"}
    assert max(result.total_ms for result in results) < LEASE_S * 1000 / 2
    assert network.broken >= 4 * WORKERS


def _debits(rig: Rig, since_s: float) -> tuple[int, int]:
    """Requests and tokens that have been charged since then, and not given back."""
    budget, found = rig.budget(), []
    for limit in ("rpm", "tpm"):
        first = int(since_s * 1e6 // budget[f"{limit}.slot_us"]) - budget[f"{limit}.first"]
        found.append(sum(budget[f"{limit}.charges"][max(0, first) :]))
    return found[0], found[1]


def test_c22_replies_held_past_the_timeout_charge_once(rig: Rig, network: Proxy) -> None:
    """Redis charges requests and starts calls, and its answers come too late: asked again, it charges none twice."""
    let_pass(WINDOW_S / 60)  # what was charged before is in another slot of the window
    began = time.time()
    rig.wait_for([rig.add(f"[held {i}] what do you think?", complexity="complex") for i in range(10, 20)])
    calls, tokens = _debits(rig, began)
    assert calls == 10
    network.slow(0.08, "replies")  # whoever's answer is written now gets it after it is held

    ids = [rig.add(f"[held {i}] what do you think?", complexity="complex") for i in range(20, 70)]
    wait_until(lambda: any(grant[-2:] == b" 1" for grant in rig.redis.hvals(rig.keys.key("grants"))))
    network.hold("replies")
    let_pass(CALL_TIMEOUT_S + 1)
    network.mend()
    results = rig.wait_for(ids)

    assert {(result.status, result.attempt) for result in results} == {("ok", 1)}
    assert _debits(rig, began) == (60, 6 * tokens)
    assert rig.calls("[held") == 60


def test_a_half_open_connection_is_noticed(rig: Rig, network: Proxy) -> None:
    """All connections are dead without a word: after the time of a call, work goes on over new ones."""
    network.strand()
    with no_hot_loop(rig):
        ids = rig.add_many(20)
        results = rig.wait_for(ids, timeout_s=CALL_TIMEOUT_S + 5)

    assert {result.status for result in results} == {"ok"}


def test_a_redis_that_stands_still_for_long_is_waited_for(rig: Rig, network: Proxy) -> None:
    """Redis is stopped for 15 s under load and goes on: one result each, and no call that nobody granted."""
    ids = rig.add_many(100)
    rig.wait_for_count(len(rig.results) + 10)

    os.kill(rig.store.pid, signal.SIGSTOP)
    let_pass(15)
    os.kill(rig.store.pid, signal.SIGCONT)
    results = rig.wait_for(ids)

    assert {result.status for result in results} == {"ok"}
