"""Worker processes die by kill -9 in the middle of work: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.chaos.journal import Journal
from tests.integration.processes import wait_until
from tests.integration.rig import LEASE_S, Rig, open_rig
from tokenweir.keys import GROUPS

# Granted in one script call at most, and so perhaps granted and never called when a worker dies.
CALLS_IN_HAND = 16
# Budget for a third of the load in the first window: the rest waits in the backlog while workers die.
RPM = 90
STAGES = len(set(GROUPS.values()))


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """Four workers whose supervisor replaces the dead; calls take about 0.3 s."""
    with open_rig(rpm=RPM, sandbox={"ttft_mean_s": 2.0, "ttft_p99_s": 4.0}) as opened:
        opened.run(4)
        opened.ask("the first one warms up")
        yield opened


@pytest.mark.slow
def test_kill_9_in_the_middle_of_load(rig: Rig) -> None:
    """One worker process after another is killed under load: all requests answered once, no 429, no call unpaid."""
    kills = 2
    ids = rig.add_many(150)
    for kill in range(kills):
        rig.wait_for_count(20 * (kill + 1))
        rig.runs[0].kill()

    results = rig.wait_for(ids, timeout_s=40)

    assert {result.status for result in results} == {"ok"}
    rig.assert_clean()
    book = rig.book().premium
    assert book.rejected == 0
    assert book.worst_window.requests <= 1
    # A grant in the hands of the killed may have been started and never called; never the other way round.
    starts = len(Journal(rig.folder, rig.keys).read().starts)
    assert book.calls <= starts <= book.calls + kills * CALLS_IN_HAND
    wait_until(lambda: len(rig.runs[0].live) == 4, 10, why="the supervisor doesn't replace the dead")


@pytest.mark.slow
def test_an_entry_of_the_dead_is_taken_up_in_time(rig: Rig) -> None:
    """What a dead worker held is in other hands within a lease, a quarter of it, and a second."""
    rig.order(kind="hang", match="[orphan]")
    orphan = rig.add("[orphan] who takes me?", complexity="complex")
    wait_until(lambda: rig.calls("[orphan]") == 1, 15)
    owner = rig.owners("premium")[0]

    began = time.monotonic()
    rig.runs[0].kill(owner)
    wait_until(lambda: rig.redis.hget(rig.keys.status(orphan), "attempt") == b"2", 10)
    took_s = time.monotonic() - began

    assert took_s <= LEASE_S + LEASE_S / 4 + 1
    result = rig.wait_for([orphan])[0]
    assert (result.status, result.attempt) == ("ok", 2)
    assert rig.calls("[orphan]") == 2


@pytest.mark.slow
def test_c04_a_live_call_is_not_taken_over(rig: Rig) -> None:
    """A call that lasts three leases is made once: its worker renews the lease while it runs."""
    rig.order(kind=f"slow:{3 * LEASE_S}", match="[long]")

    result = rig.ask("[long] how long?", complexity="complex")

    assert (result.status, result.attempt) == ("ok", 1)
    assert result.total_ms > 3 * LEASE_S * 1000
    assert rig.calls("[long]") == 1


@pytest.mark.slow
def test_c09_poison_dies_alone() -> None:
    """A request that ends its process hard goes to `dead` with a typed error; the innocent beside it are answered."""
    with open_rig() as rig:
        run = rig.run(2, program=("-m", "tests.chaos.poisoned_worker"))
        rig.ask("the first one warms up")
        before, poison = rig.add_many(20), rig.add("[poison] swallow this")
        after = rig.add_many(20)

        innocent = rig.wait_for([*before, *after], timeout_s=30)
        result = rig.wait_for([poison])[0]

        assert {one.status for one in innocent} == {"ok"}
        assert (result.status, result.code) == ("error", "dead_letter")
        assert json.loads(bytes(result.body))["error"]["code"] == "dead_letter"
        letters = rig.command("XRANGE", rig.keys.key("dead"), "-", "+")
        assert len(letters) == 1
        assert poison.encode() in str(letters[0]).encode()
        assert len(run.events("worker_ended")) == 3  # max_deliveries
        rig.assert_clean()


@pytest.mark.slow
def test_a_mistake_of_ours_ends_in_dead_without_a_word_of_the_prompt() -> None:
    """A request at which a stage raises is tried a few times, then dead; the log shows where, and no variable."""
    with open_rig(lease_s=1.0) as rig:
        run = rig.run(program=("-m", "tests.chaos.poisoned_worker"))

        broken, fine = rig.add("[broken] xylophone-quartz"), rig.add("[fine] and me?")
        result, other = rig.wait_for([broken, fine])

        assert other.status == "ok"
        assert (result.status, result.code) == ("error", "dead_letter")
        failures = run.events("stage_failed")
        assert len(failures) == 3  # max_deliveries
        assert "a mistake of ours" in str(failures)
        assert "xylophone-quartz" not in run.text
        rig.assert_clean()


@pytest.mark.slow
def test_c12_a_loop_that_ends_takes_its_process_along() -> None:
    """A worker whose reader ends without an error doesn't look healthy for ever: it ends too, and is replaced."""
    with open_rig(lease_s=1.0) as rig:
        run = rig.run(2, program=("-m", "tests.chaos.poisoned_worker"))
        rig.ask("the first one warms up")
        reads = rig.metric("tokenweir_last_read_timestamp_seconds", stage="classify")
        wait_until(lambda: rig.metric("tokenweir_last_read_timestamp_seconds", stage="classify") > reads, 10)

        result = rig.ask("[reader] go on without me")

        assert result.status == "ok"
        wait_until(lambda: run.events("worker_ended"), 10)
        assert [line["code"] for line in run.events("worker_ended")] == [1]
        assert "StageLoop._read_until" in str(run.events("loop_ended"))
        wait_until(lambda: len(run.live) == 2, 10, why="it isn't replaced")
        assert rig.ask("[after] and now?").status == "ok"
        rig.assert_clean()


@pytest.mark.slow
def test_broken_connections_are_no_deliveries() -> None:
    """Connections break four times, then the worker is killed: its entry is done again, and not taken for poison."""
    with open_rig(rpm=1, networks=True) as rig:
        run, network = rig.run(2), rig.networks.redis
        wait_until(lambda: rig.redis.exists(rig.keys.key("edge:alive")), 10)
        rig.order(kind="hang", match="[long]", side="edge")
        request = rig.add("[long] who takes me?", task="intent")
        wait_until(lambda: rig.calls("[long]", side="edge") == 1, 15)
        for _ in range(4):
            newest = max(int(client["id"]) for client in rig.redis.client_list())
            network.break_all()
            wait_until(partial(_all_read_again, rig, newest), 10, why="not all loops are back")

        run.kill(rig.owners("edge")[0])

        result = rig.wait_for([request])[0]
        assert (result.status, result.route, result.code) == ("ok", "edge", "")
        assert rig.calls("[long]", side="edge") == 2
        rig.assert_clean()


def _all_read_again(rig: Rig, after: int) -> bool:
    """Whether every loop of two workers waits in a read, on a connection that is newer than the one with this id."""
    found = [client for client in rig.redis.client_list() if int(client["id"]) > after]
    return sum(client["cmd"] == "xreadgroup" and "b" in client["flags"] for client in found) == 2 * STAGES
