"""Providers fail, deadlines pass: every request still gets the ending that is right for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig

# A bucket of 6 requests, refilled by 9 a second.
RPM, BURST = 60, 12


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """One worker with a small budget and a warm edge."""
    with open_rig(rpm=RPM, edge={"keep_alive": "30m"}) as opened:
        opened.run()
        opened.ask("the first one warms up")
        wait_until(lambda: opened.redis.exists(opened.keys.key("edge:alive")), 10)
        yield opened


@pytest.fixture(autouse=True)
def _clean(rig: Rig) -> Iterator[None]:
    """After every test: one result an id, empty streams, no stray key, no 429 that wasn't ordered."""
    yield
    rig.assert_clean(timeout_s=20)
    assert rig.book().premium.rejected == 0


def _spend(rig: Rig) -> list[str]:
    """Use up the budget for a second or so: what comes next can't be granted at once."""
    return [rig.add(f"[spend {i}] and then?", complexity="complex", tenant="spender") for i in range(BURST)]


@pytest.mark.parametrize("fault", ["status:500", "error", "cut", "reset", "html"])
def test_edge_trouble_is_no_failure(rig: Rig, fault: str) -> None:
    """Whatever the local model does, its request goes on to premium and is answered there."""
    marker = f"[edge {fault}]"
    rig.order(kind=fault, match=marker, side="edge")
    spent = _spend(rig)

    result = rig.ask(f"{marker} where is it?", task="intent")

    assert (result.status, result.route) == ("ok", "premium")
    assert (rig.calls(marker, "edge"), rig.calls(marker)) == (1, 1)
    rig.wait_for(spent)


def test_c55_a_missing_edge_model_is_said_once_and_loses_nothing() -> None:
    """The edge doesn't have the model: the log names it and the cure, simple requests take premium, no 404 storm."""
    with open_rig(edge={"model": "no-such-model"}) as rig:
        run = rig.run()

        results = rig.wait_for([rig.add(f"[missing {i}] where?", task="intent") for i in range(20)])

        assert {(result.status, result.route) for result in results} == {("ok", "premium")}
        said = run.events("edge_model_missing")
        assert [line["cure"] for line in said] == ["ollama pull no-such-model"]
        assert rig.calls("[missing", "edge") == 0
        rig.assert_clean()


@pytest.mark.parametrize("fault", ["status:503", "cut", "error", "empty_choices"])
def test_premium_trouble_is_tried_again(rig: Rig, fault: str) -> None:
    """A call that fails once is made once more, with a grant of its own, and answered at attempt 2."""
    marker = f"[premium {fault}]"
    rig.order(kind=fault, match=marker)

    result = rig.ask(f"{marker} what now?", complexity="complex")

    assert (result.status, result.route, result.attempt) == ("ok", "premium", 2)
    assert rig.calls(marker) == 2


def test_premium_trouble_without_end_is_answered(rig: Rig) -> None:
    """A call that fails at every attempt ends in a typed error after `max_attempts` calls."""
    rig.order(kind="cut", match="[hopeless]", times=9)

    result = rig.ask("[hopeless] what now?", complexity="complex")

    assert (result.status, result.code, result.attempt) == ("error", "provider_unavailable", 3)
    assert rig.calls("[hopeless]") == 3


def test_a_429_pauses_everybody_and_is_counted(rig: Rig) -> None:
    """The provider says 429: premium is closed for all for a while, the request is answered later, an alarm counts."""
    before = rig.metric("tokenweir_provider_429_total")
    rig.order(kind="status:429", match="[limited]")
    limited = rig.add("[limited] when?", complexity="complex")
    wait_until(lambda: rig.budget().get("pause_until", 0) > time.time() * 1e6, 10)
    other = rig.add("[meanwhile] me too?", complexity="complex")

    first, second = rig.wait_for([limited, other])

    assert (first.status, first.attempt, second.status) == ("ok", 2, "ok")
    assert rig.metric("tokenweir_provider_429_total") == before + 1
    assert second.waited_ms > 100, "the other one wasn't held back by the pause"


def test_a_rejected_request_is_answered_at_once(rig: Rig) -> None:
    """A 400 is final: one call, a typed error, no further attempt."""
    rig.order(kind="status:400", match="[rejected]")

    result = rig.ask("[rejected] why?", complexity="complex")

    assert (result.status, result.code, result.attempt) == ("error", "provider_rejected", 1)
    assert rig.calls("[rejected]") == 1


def test_a_deadline_that_passes_in_the_backlog_ends_on_time(rig: Rig) -> None:
    """`max_wait` passes while a request waits for the budget: `expired`, less than a second late, never called."""
    spent = [*_spend(rig), *_spend(rig), *_spend(rig)]
    began = time.monotonic()
    late = rig.add("[late] too late?", complexity="complex", class_="batch", max_wait="1.5")

    result = rig.wait_for([late])[0]
    took_s = time.monotonic() - began

    assert (result.status, result.code) == ("expired", "deadline_exceeded")
    assert json.loads(bytes(result.body))["error"]["code"] == "deadline_exceeded"
    assert 1.4 < took_s < 2.5
    assert rig.calls("[late]") == 0
    rig.wait_for(spent)


def test_a_deadline_in_the_past_is_refused_at_once(rig: Rig) -> None:
    """A deadline that has passed already costs nothing."""
    result = rig.ask("[past] too late?", deadline=f"{time.time() - 5:.0f}")

    assert (result.status, result.code) == ("expired", "deadline_exceeded")
    assert rig.calls("[past]") + rig.calls("[past]", "edge") == 0


@pytest.mark.slow
def test_c30_a_used_up_quota_is_no_storm() -> None:
    """`insufficient_quota`: one call and an alarm, premium closed; simple requests go to the edge, the rest waits."""
    with open_rig() as rig:
        run = rig.run()
        wait_until(lambda: rig.redis.exists(rig.keys.key("edge:alive")), 10)
        rig.ask("the first one warms up", complexity="complex")
        rig.order(kind="status:429:insufficient_quota", match="[broke]", times=50)

        first = rig.add("[broke] 0", complexity="complex")
        wait_until(lambda: rig.calls("[broke]") == 1, 10)
        wait_until(lambda: rig.budget().get("pause_until", 0) > time.time() * 1e6, 10)
        simple = [rig.add(f"[broke] simple {i}", task="intent") for i in range(10)]
        complex_ = [rig.add(f"[broke] {i}", complexity="complex", max_wait="3") for i in range(1, 10)]

        assert {(result.status, result.route) for result in rig.wait_for(simple)} == {("ok", "edge")}
        assert {result.code for result in rig.wait_for(complex_)} == {"deadline_exceeded"}
        assert rig.calls("[broke]") == 1
        assert first not in rig.results
        assert run.events("attempt_failed")[0]["reason"] == "quota_exhausted"
