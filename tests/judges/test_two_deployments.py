"""Twelve worker processes and two deployments that can stand in for each other."""

from __future__ import annotations

import json
import urllib.request

import pytest

from pipeline.sandbox.ready import Ready
from tests.integration.processes import wait_until
from tests.judges.load import (
    Stated,
    add,
    another_provider,
    answers,
    assert_kept,
    book,
    calls,
    grants_started,
    mixed,
    rest,
    small,
    twelve_workers,
    used,
)

pytestmark = pytest.mark.slow

_LARGE, _SMALL = Stated(), Stated(rpm=120, tpm=12_000)


def _run_dry(provider: Ready) -> None:
    """From now on the account has no quota left."""
    fault = json.dumps([{"kind": "status:429:insufficient_quota", "times": None}]).encode()
    urllib.request.urlopen(f"{provider.control}/faults", data=fault, timeout=10).close()


def test_the_deployment_with_most_room_is_taken_and_both_stay_within_their_limits() -> None:
    """Of 18 at once two thirds go where twice as much is allowed; under a flood neither refuses, and both are used."""
    with (
        another_provider(_SMALL, "second") as (second, lines),
        twelve_workers(_LARGE, mode="sliding", preset="auto", more=lines) as rig,
    ):
        answers(rig, add(rig, "first", small(0.1, _LARGE, seed=4)), 20)
        rest(rig, _LARGE, 0.1, "primary", "second")
        answers(rig, add(rig, "few", [20] * 18), 20)
        shares = [sum("[few" in call.prompt for call in calls(provider)) for provider in (rig.sandbox, second)]
        assert sum(shares) == 18
        assert 10 <= shares[0] <= 14

        before = len(calls(rig.sandbox)), len(calls(second))
        answers(rig, add(rig, "flood", mixed(2.0, _SMALL, seed=5) + small(2.0, _LARGE, seed=6)), 60)

        rig.assert_clean()
        assert_kept(rig, rig.sandbox)
        assert_kept(rig, second, "second")
        use = used(calls(rig.sandbox)[before[0] :], _LARGE), used(calls(second)[before[1] :], _SMALL)
        print(f"of 18 {shares}, used {use}")
        assert min(use) > 0.7


def test_a_used_up_quota_is_nobodys_error_while_another_deployment_serves() -> None:
    """In the middle of a flood one account runs dry: the other serves everything, within its limits."""
    with (
        another_provider(_LARGE, "second") as (second, lines),
        twelve_workers(_LARGE, mode="sliding", preset="auto", more=lines) as rig,
    ):
        ids = add(rig, "flood", small(1.6, _LARGE, seed=7))
        wait_until(lambda: len(calls(second)) > 60, 30)
        served = len(calls(rig.sandbox))
        _run_dry(second)

        results = rig.wait_for(ids, 60)

        assert {(result.status, result.route) for result in results} == {("ok", "premium")}
        rig.assert_clean()
        assert_kept(rig, rig.sandbox)
        ledger = book(second).premium
        assert (ledger.rejected, ledger.calls) == (0, grants_started(rig, "second"))
        assert ledger.worst_window.requests <= 1
        refused = ledger.fates["fault"]
        assert sum(result.attempt for result in results) == len(ids) + refused
        assert len(calls(rig.sandbox)) == len(ids) - ledger.fates["answered"] > served
        print(f"{refused} calls met the used-up quota; {ledger.fates}")
        # What was on its way when the first of them was refused, and a probe at most.
        assert 1 <= refused <= 40
