"""The other program on the key, on a clock of our own."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sandbox.foreign import ForeignLoad
from pipeline.sandbox.limits import Limits
from pipeline.sandbox.meter import WorstWindow
from pipeline.sandbox.settings import Dimension, Enforcement

_LIMITS: dict[Dimension, int] = {"rpm": 500, "tpm": 30_000}


def _load(
    share: float, *, seed: int = 1, mean_tokens: int = 200, limits: dict[Dimension, int] = _LIMITS
) -> ForeignLoad:
    return ForeignLoad(share=share, mean_tokens=mean_tokens, limits=limits, window_s=60, seed=seed)


@pytest.mark.parametrize("share", [0.2, 0.7])
@pytest.mark.parametrize(("mean_tokens", "binding"), [(200, "tpm"), (10, "rpm")])
def test_it_takes_its_share(share: float, mean_tokens: int, binding: str) -> None:
    """Over many windows it takes the stated share of the limit that its calls reach first."""
    windows = 400
    load = _load(share, mean_tokens=mean_tokens)

    load.charge_until(Limits("bucket", _LIMITS, 60), 60.0 * windows)

    count = load.count
    taken = count.tokens / 30_000 if binding == "tpm" else count.admitted / 500
    assert taken / windows == pytest.approx(share, rel=0.03)
    assert count.tokens / count.admitted == pytest.approx(mean_tokens, rel=0.03)


@given(looks=st.lists(st.floats(0, 30), max_size=40), seed=st.integers(0, 50))
def test_how_often_somebody_looks_changes_nothing(looks: list[float], seed: int) -> None:
    """Its calls come at times of their own: one look at the end finds the same as many on the way."""
    often, once = _load(0.9, seed=seed), _load(0.9, seed=seed)
    often_limits, once_limits = Limits("sliding", _LIMITS, 60), Limits("sliding", _LIMITS, 60)

    for now in sorted(looks):
        often.charge_until(often_limits, now)
    for load, limits in ((often, often_limits), (once, once_limits)):
        load.charge_until(limits, 30.0)

    assert often.count == once.count
    assert {name: budget.level(30.0) for name, budget in often_limits.budgets.items()} == {
        name: budget.level(30.0) for name, budget in once_limits.budgets.items()
    }


def test_it_leaves_less_for_others() -> None:
    """Another caller finds only the rest of the budget."""
    alone, shared = Limits("sliding", _LIMITS, 60), Limits("sliding", _LIMITS, 60)
    load = _load(0.5)

    load.charge_until(shared, 59.0)

    assert shared.budgets["tpm"].level(59.0) == alone.budgets["tpm"].level(59.0) - load.count.tokens
    assert 10_000 < load.count.tokens < 20_000


def test_it_is_refused_like_anybody() -> None:
    """Beyond the limit its calls are refused and given up; nothing is let through for it."""
    limits: dict[Dimension, int] = {"tpm": 1000}
    load = _load(3.0, mean_tokens=50, limits=limits)
    shared, meter, now, before = Limits("sliding", limits, 60), WorstWindow(1000, 60), 0.0, 0

    while now < 600:
        now += 0.25
        load.charge_until(shared, now)
        meter.record(load.count.tokens - before, now)
        before = load.count.tokens

    assert load.count.rejected > 100
    assert 0.9 < meter.worst <= 1.05  # seen in steps of a quarter second, so a little more than the window itself


@pytest.mark.parametrize("mode", get_args(Enforcement))
def test_no_share_is_no_calls(mode: Enforcement) -> None:
    """With a share of 0 the account is ours alone, in every mode."""
    limits = Limits(mode, _LIMITS, 60)
    load = _load(0.0)

    load.charge_until(limits, 1e6)

    assert (load.count.admitted, load.count.rejected) == (0, 0)


def test_a_share_of_nothing_is_refused() -> None:
    """Where neither requests nor tokens are limited a share has no meaning."""
    with pytest.raises(ValueError, match="neither is limited"):
        _load(0.5, limits={"itpm": 5})


def test_calls_of_one_token_are_possible() -> None:
    """The smallest mean is exact."""
    load = _load(0.5, mean_tokens=1)

    load.charge_until(Limits("bucket", _LIMITS, 60), 600.0)

    assert load.count.tokens == load.count.admitted > 0
