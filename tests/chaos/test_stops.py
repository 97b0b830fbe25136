"""Workers are told to stop: in time, in order, with exit code 0, and with nothing left undone."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """No workers yet: each test starts its own."""
    with open_rig() as opened:
        yield opened


@pytest.fixture(autouse=True)
def _end_runs(rig: Rig) -> Iterator[None]:
    """Nobody of one test is there in the next; no stop left a traceback."""
    yield
    rig.end_runs()
    rig.redis.delete(rig.keys.key("slots"))  # of workers that couldn't withdraw theirs, which only run out later
    assert [run.text for run in rig.runs if "Traceback" in run.text] == []
    rig.runs.clear()


def _in_a_long_call(rig: Rig, marker: str, *, seconds: float) -> str:
    """The id of a request whose call has begun, and lasts."""
    rig.order(kind=f"slow:{seconds}", match=marker)
    request = rig.add(f"{marker} take your time", complexity="complex")
    wait_until(lambda: rig.calls(marker) == 1, 15)
    return request


@pytest.mark.parametrize("workers", [1, 2])
def test_c66_a_stop_lets_a_long_call_finish(rig: Rig, workers: int) -> None:
    """SIGTERM in the middle of a call: it is finished, acknowledged and answered, one call, exit code 0."""
    run, marker = rig.run(workers), f"[finish {workers}]"
    request = _in_a_long_call(rig, marker, seconds=1.5)

    run.signal(signal.SIGTERM)
    code = run.wait()

    assert code == 0
    assert len(run.events("worker_stopped")) == workers
    assert rig.wait_for([request], timeout_s=1)[0].status == "ok"
    assert rig.calls(marker) == 1
    rig.assert_clean()


def test_c66_what_cannot_finish_is_handed_back(rig: Rig) -> None:
    """With little time to drain the call is given up and handed back at once: another worker answers it."""
    hasty = rig.configure("main", drain_s=0.5, lease_s=20)
    run = hasty.run()
    request = _in_a_long_call(rig, "[hand back]", seconds=12)

    began = time.monotonic()
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    stopped_s = time.monotonic() - began
    other = rig.configure("main", lease_s=4).run()

    result = rig.wait_for([request], timeout_s=15)[0]
    assert stopped_s < 5
    # Far less than the lease of 20 s that the first one had: it was handed back, and not waited for.
    assert (result.status, result.attempt) == ("ok", 2)
    assert rig.calls("[hand back]") == 2
    rig.assert_clean()
    other.end()


def test_c66_one_of_three_stops_in_the_middle_of_load(rig: Rig) -> None:
    """Five of 50 calls last 40 s; the worker that holds them has 60 s to stop, another one 10: nothing is lost.

    All in a tenth of the time: calls of 4 s, and 5.5 s or half a second to drain.
    """
    first = rig.configure("main", drain_s=5.5).run()
    long = _long_calls(rig, "patient")
    hasty = rig.configure("main", drain_s=0.5)
    others = [hasty.run(), hasty.run()]

    short = _short_calls(rig, "patient")
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    # Not one result is lost that came after the signal, and not one call is made twice.
    assert {result.status for result in rig.wait_for([*long, *short])} == {"ok"}
    assert {rig.calls(f"[{id_}]") for id_ in (*long, *short)} == {1}

    long = _long_calls(rig, "hasty")
    owner = rig.owners("premium")[0]
    second = next(run for run in others if owner in run.live)
    short = _short_calls(rig, "hasty")
    began = time.monotonic()
    second.signal(signal.SIGTERM)
    assert second.wait() == 0
    assert time.monotonic() - began < 0.5 + 5  # what a platform's grace must leave beside the time to drain
    assert {result.status for result in rig.wait_for([*long, *short], timeout_s=30)} == {"ok"}
    calls = {id_: rig.calls(f"[{id_}]") for id_ in (*long, *short)}
    assert max(calls.values()) <= 2
    assert sum(calls.values()) - len(calls) <= 16  # premium_concurrency, what one worker may hold
    rig.assert_clean()


def _long_calls(rig: Rig, name: str) -> list[str]:
    """Five requests whose calls have begun, and last."""
    ids = [f"{name}-long{i}" for i in range(5)]
    for id_ in ids:
        rig.order(kind="slow:4", match=f"[{id_}]")
        rig.add(f"[{id_}] take your time", id=id_, complexity="complex")
    wait_until(lambda: rig.calls(f"[{name}-long") == 5, 15)
    return ids


def _short_calls(rig: Rig, name: str) -> list[str]:
    return [rig.add(f"[{name}-{i}] quick", id=f"{name}-{i}", complexity="complex") for i in range(45)]


def test_a_stopping_worker_takes_nothing_new(rig: Rig) -> None:
    """What is added after the signal waits for the next worker, and is answered by it."""
    run = rig.run()
    long = _in_a_long_call(rig, "[nothing new]", seconds=1.5)
    run.signal(signal.SIGTERM)
    wait_until(lambda: not rig.redis.hlen(rig.keys.key("slots")), why="a stopping worker still offers slots")
    late = rig.add("[late] anybody?")
    assert run.wait() == 0

    assert rig.wait_for([long], timeout_s=1)[0].status == "ok"
    rig.read()
    assert late not in rig.results
    rig.run()
    assert rig.wait_for([late])[0].status == "ok"
    rig.assert_clean()


def test_ctrl_c_ends_all_in_time(rig: Rig) -> None:
    """Ctrl-C in a terminal reaches every process of the group: all end within seconds, quietly, with code 0."""
    run = rig.run(3)
    ids = rig.add_many(30)

    began = time.monotonic()
    run.signal(signal.SIGINT, group=True)
    code = run.wait()

    assert (code, time.monotonic() - began < 8) == (0, True)
    assert "Traceback" not in run.text
    rig.run()
    rig.wait_for(ids)
    rig.assert_clean()


def test_a_second_signal_ends_at_once(rig: Rig) -> None:
    """Whoever can't wait signals twice: the process ends, what it held stays pending and is answered by the next."""
    run = rig.run()
    request = _in_a_long_call(rig, "[twice]", seconds=12)

    run.signal(signal.SIGTERM)
    wait_until(lambda: not rig.redis.hlen(rig.keys.key("slots")))
    began = time.monotonic()
    run.signal(signal.SIGTERM)
    code = run.wait()

    assert (code, time.monotonic() - began < 3) == (0, True)
    rig.run()
    assert rig.wait_for([request])[0].status == "ok"
    rig.assert_clean()


def test_a_stop_without_redis_ends_in_time(rig: Rig) -> None:
    """Redis is away when the signal comes: the worker ends within its time to drain, and a few seconds."""
    run = rig.configure("main", drain_s=1).run(2)
    rig.ask("the first one warms up")
    rig.store.stop()
    try:
        wait_until(lambda: run.events("redis_outage_began"), 10)
        began = time.monotonic()
        run.signal(signal.SIGTERM)
        code = run.wait()
    finally:
        rig.store.start()

    assert (code, time.monotonic() - began < 6) == (0, True)


def test_workers_wait_for_a_redis_that_is_not_there_yet(rig: Rig) -> None:
    """Started before Redis, a worker lives, isn't ready, and serves as soon as Redis does (C59)."""
    rig.store.stop()
    try:
        run = rig.run()
        wait_until(lambda: run.events("redis_outage_began"), 10)
    finally:
        rig.store.start()

    assert rig.ask("at last", timeout_s=8).status == "ok"
    assert len(run.started) == 1
