"""What the gate learns from a provider's headers: what others take of a key, and whether unused tokens come back."""

from __future__ import annotations

from typing import cast

import pytest

from pipeline.plan.gate import Room
from pipeline.plan.modes import FITTING, MODES
from pipeline.plan.proof import Result
from pipeline.sandbox.settings import Enforcement as Mode
from tests.plan.cases import case, played
from tests.plan.conftest import Plan
from tokenweir.terms import Enforcement as Preset

_CONTINUOUS = "[[pools.main.deployments]]\nrpm = 500\ntpm = 30_000\nenforcement = 'continuous'\n"
_STOPS_S = 300.0


@pytest.mark.parametrize("share", [0.2, 0.4, 0.7])
@pytest.mark.parametrize("seed", [1, 2])
def test_other_programs_on_the_key_are_withstood(share: float, seed: int) -> None:
    """Whatever part of the key goes to others, nothing is refused, and hardly any of what they leave is left unused."""
    results = played(case(enforcement="continuous", foreign_share=share, minutes=8, seed=seed), "bucket", None)

    for result in results:
        assert result.rejected == 0
        assert result.worst_window_ratio <= 1
    for result in results[:2]:  # of work without end
        assert result.foreign_used_ratio == pytest.approx(share, rel=0.15)
        assert result.foreign_left_used_ratio is not None
        assert 0.95 <= result.foreign_left_used_ratio <= 1


def test_what_is_left_unused_shows() -> None:
    """With too few slots for what others leave, the figure says how much of it went to nobody."""
    few = case(enforcement="continuous", foreign_share=0.2, room=Room(premium=3))

    (result,) = played(few, "bucket", "constant", bound="tpm")

    assert result.used_ratio is not None
    assert result.foreign_left_used_ratio is not None
    assert result.foreign_left_used_ratio < 0.9
    assert result.foreign_left_used_ratio > result.used_ratio


def test_shares_of_others_are_told_apart(plan: Plan) -> None:
    """For machines: what we used, what others used, and what we used of that which they left, each by its name."""
    said = plan("--foreign", "0.4", "--profile", "constant", "--json", "--minutes", "5", config=_CONTINUOUS)

    figures = said.json["modes"]["bucket"]
    tokens = figures["bound_by"]["tpm"]
    assert said.code == 0
    assert figures["foreign_left_used_ratio"] >= 0.95
    assert tokens["foreign_used_ratio"] + tokens["used_ratio"] == pytest.approx(1.0, abs=0.25)
    assert len(tokens["used_by_window"]) == 4


def test_table_says_what_use_is_a_share_of(plan: Plan) -> None:
    """With others on the key, the table's column says that it is of what they left."""
    said = plan("--foreign", "0.4", "--profile", "constant", "--minutes", "3", config=_CONTINUOUS)

    assert said.code == 0
    assert "USED OF WHAT OTHERS LEFT" in said.out


@pytest.mark.parametrize("preset", ["auto", "continuous"])
def test_refunds_are_found_and_used(preset: Preset) -> None:
    """Where unused tokens come back, that is proved by the headers, and the real use then reaches the limit."""
    (result,) = played(case(enforcement=preset, refunds=True, minutes=6), "bucket", "constant", bound="tpm")

    often, proven_s = result.alarms["refunds_proven"]
    assert (result.rejected, result.settlement, often) == (0, "refund", 1)
    assert proven_s < 60
    # Windows are counted from the second one on.
    assert min(result.used_by_window[int(proven_s // 60) + 1 :]) >= 0.9
    assert result.worst_window_ratio <= 1


@pytest.mark.parametrize("preset", ["auto", "continuous"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_end_of_refunds_is_noticed_once(preset: Preset, seed: int) -> None:
    """When a provider ends its refunds without notice, that costs three refusals at most, and is found for good."""
    ends = case(enforcement=preset, refunds=True, stops_refunding_s=_STOPS_S, minutes=15, seed=seed)

    (result,) = played(ends, "bucket", "constant", bound="tpm")

    often, noticed_s = result.alarms["refunds_contradicted"]
    assert (result.settlement, often, result.alarms["refunds_proven"][0]) == ("none", 1, 1)
    assert result.rejected <= 3
    assert _STOPS_S < noticed_s < _STOPS_S + 180


@pytest.mark.parametrize("mode", MODES)
def test_no_refunds_are_seen_where_there_are_none(mode: Mode) -> None:
    """However a provider counts, it isn't believed to give back what it keeps: that would end in refusals."""
    results = list[Result]()
    for preset in dict.fromkeys(cast("tuple[Preset, ...]", (FITTING[mode], "auto"))):
        fitting = case(enforcement=preset, minutes=10)
        results += [*played(fitting, mode, "story"), *played(fitting, mode, "bursts")]

    assert len(results) >= 3
    for result in results:
        assert result.settlement == "none"
        assert "refunds_proven" not in result.alarms


def test_what_others_take_is_no_refund() -> None:
    """Other programs make the headers restless; that isn't taken for tokens that come back."""
    for share in (0.2, 0.7):
        for result in played(case(enforcement="continuous", foreign_share=share), "bucket", None):
            assert result.settlement == "none"
            assert "refunds_proven" not in result.alarms


def test_options_for_refunds_reach_the_provider(plan: Plan) -> None:
    """`--refund` and `--stops-refunding-at` are played, and what was learnt is told."""
    words = ("--refund", "--stops-refunding-at", "200", "--profile", "constant", "--minutes", "10")

    said = plan(*words, config=_CONTINUOUS)

    assert said.code == 0
    assert "constant tpm: refunds proven: 1 times" in said.out
    assert "constant tpm: refunds contradicted: 1 times" in said.out
