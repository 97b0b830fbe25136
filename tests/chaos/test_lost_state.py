"""Redis forgets under full load, in part or in whole: the provider never sees more than it allows."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.integration.processes import wait_until
from tests.integration.rig import WINDOW_S, Rig, open_rig

pytestmark = pytest.mark.slow

WORKERS = 12
# Of a window of 6 s: 20 calls a second, so that the work below lasts some windows.
RPM = 120
LATE_S = 0.5


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Twelve worker processes under a provider that counts in a sliding window."""
    with open_rig(rpm=RPM, sandbox={"ttft_mean_s": 2.0, "ttft_p99_s": 4.0}) as opened:
        opened.run(WORKERS)
        opened.ask("the first one warms up")
        yield opened


def _admitted_within(rig: Rig, seconds: float, *, more_than: int) -> None:
    wait_until(
        lambda: rig.book().premium.admitted > more_than, seconds, why="premium isn't back within a window and the way"
    )


def _assert_never_too_much(rig: Rig) -> None:
    book = rig.book().premium
    assert book.rejected == 0
    assert book.worst_window.requests <= 1


def _level(rig: Rig) -> float:
    """Requests that may go at once."""
    flat = rig.budget()
    seconds = time.time() - float(flat["at"]) / 1e6
    return min(RPM / 2, float(flat["rpm.level"]) + seconds * RPM / (WINDOW_S + LATE_S + WINDOW_S / 60))


def _done(rig: Rig, ids: list[str]) -> bool:
    pipe = rig.redis.pipeline(transaction=False)
    for id_ in ids:
        pipe.hget(rig.keys.status(id_), "state")
    return set(pipe.execute()) == {b"done"}


def test_a_fail_over_that_loses_a_burst_admits_no_more() -> None:
    """Half of the limit goes in one burst, and the server's successor knows nothing of it: no second burst, no 429."""
    with open_rig(rpm=RPM, sandbox={"ttft_mean_s": 2.0, "ttft_p99_s": 4.0}, call={"enforcement": "continuous"}) as rig:
        rig.run(WORKERS)
        rig.ask("the first one warms up")
        wait_until(lambda: _level(rig) > RPM / 2 - 2, 20, why="the bucket isn't full again")
        copy = rig.store.copy()
        rig.add_many(150, complexity="complex")
        wait_until(lambda: rig.book().premium.admitted > RPM / 2 - 2, 20)
        before = rig.book().premium.admitted

        rig.store.fail_over(copy)
        ids = rig.add_many(150, complexity="complex")

        _admitted_within(rig, WINDOW_S + LATE_S, more_than=before + 16)
        wait_until(lambda: _done(rig, ids), 60, why=f"not all are answered: {rig.state()}")
        _assert_never_too_much(rig)


def test_an_emptied_redis_under_full_load_admits_no_more(rig: Rig) -> None:
    """FLUSHALL while every window is full: no 429, and what is added afterwards is served, premium within W + J."""
    rig.add_many(300, complexity="complex")
    wait_until(lambda: rig.book().premium.admitted > 150, 30)
    before = rig.book().premium.admitted

    rig.command("FLUSHALL")
    rig.forget()
    ids = rig.add_many(150, complexity="complex")

    _admitted_within(rig, WINDOW_S + LATE_S, more_than=before + 16)
    assert {result.status for result in rig.wait_for(ids, timeout_s=40)} == {"ok"}
    _assert_never_too_much(rig)


def test_a_restart_and_forgotten_scripts_under_full_load_admit_no_more(rig: Rig) -> None:
    """The server restarts with its data, and then forgets the scripts: no 429, nothing lost."""
    ids = rig.add_many(200, complexity="complex")
    wait_until(lambda: rig.book().premium.admitted > 80, 30)

    rig.store.stop()
    rig.store.start()
    for _ in range(3):
        rig.command("SCRIPT", "FLUSH")
        rig.wait_for_count(len(rig.results) + 20)

    assert {result.status for result in rig.wait_for(ids, timeout_s=40)} == {"ok"}
    _assert_never_too_much(rig)
    rig.assert_clean()
