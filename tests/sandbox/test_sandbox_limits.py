"""What an account admits, in all its dimensions together."""

import math
from typing import get_args

import pytest

from pipeline.sandbox.limits import Limits
from pipeline.sandbox.modes import Sliding
from pipeline.sandbox.settings import Enforcement

MODES: tuple[Enforcement, ...] = get_args(Enforcement)


@pytest.mark.parametrize("mode", MODES)
def test_a_refusal_takes_nothing(mode: Enforcement) -> None:
    """All or nothing: a call short of tokens uses up no request, and one short of requests no tokens."""
    limits = Limits(mode, {"rpm": 120, "tpm": 600}, 60)
    requests, tokens = (int(budget.level(0)) for budget in limits.budgets.values())

    assert limits.charge({"rpm": 1, "tpm": tokens + 1}, 0).short == "tpm"
    assert limits.charge({"rpm": requests + 1, "tpm": 1}, 0).short == "rpm"
    assert [budget.level(0) for budget in limits.budgets.values()] == [requests, tokens]
    assert limits.charge({"rpm": requests, "tpm": tokens}, 0).admitted


@pytest.mark.parametrize("mode", MODES)
def test_more_than_the_limit_never_fits(mode: Enforcement) -> None:
    """A call larger than the limit is refused with an infinite wait, and names the dimension."""
    verdict = Limits(mode, {"rpm": 5, "tpm": 100}, 60).charge({"rpm": 1, "tpm": 101}, 0)

    assert (verdict.short, verdict.wait_s) == ("tpm", math.inf)


def test_a_bucket_lets_nearly_twice_the_limit_through_and_a_sliding_window_doesnt() -> None:
    """The two modes differ as real providers do: after a full bucket its refill comes on top."""
    bucket, sliding = (Limits(mode, {"tpm": 600}, 60) for mode in ("bucket", "sliding"))

    admitted = [
        sum(limits.charge({"tpm": 1}, 100 + number / 20).admitted for number in range(1199))
        for limits in (bucket, sliding)
    ]

    assert admitted == [1199, 600]


def test_a_long_life_doesnt_grow_a_sliding_window() -> None:
    """Memory follows the window, not the age."""
    budget = Sliding(10, 1)

    for second in range(100_000):
        budget.take(1, float(second))

    assert len(budget._costs) < 4096
