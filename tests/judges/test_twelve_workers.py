"""Twelve worker processes with more work than a provider allows: it refuses nothing, however it counts."""

from __future__ import annotations

import pytest

from pipeline.sandbox.settings import Enforcement as Mode
from tests.judges.load import Stated, add, answers, assert_kept, calls, mixed, rest, small, twelve_workers, used
from tokenweir.terms import Enforcement as Preset

pytestmark = pytest.mark.slow

_WINDOW = Stated()
# Slices of a window of 12 s are 2 s long, so that the way to the provider is a small part of them.
_SLICED = Stated(rpm=480, tpm=48_000, window_s=12.0)
# Of the limits, what may go at once: the bursts of the presets.
_BURST: dict[Preset, float] = {"auto": 0.1, "continuous": 0.5, "quantised:10s": 0.1}


@pytest.mark.parametrize(
    ("mode", "preset", "stated", "windows", "least_used"),
    [
        ("sliding", "auto", _WINDOW, 1.1, 0.75),
        ("fixed", "auto", _WINDOW, 1.1, 0.75),
        ("bucket", "continuous", _WINDOW, 1.1, 0.75),
        ("bucket/6", "auto", _WINDOW, 1.1, 0.75),
        # No burst at all, and a fifth of each slice is kept for the way to the provider.
        ("10s", "quantised:10s", _SLICED, 0.6, 0.6),
    ],
    ids=["sliding", "fixed", "bucket", "sixth", "slices"],
)
def test_twelve_workers_are_never_refused(
    mode: Mode, preset: Preset, stated: Stated, windows: float, least_used: float
) -> None:
    """Two floods, one that is short of tokens, one of requests: no 429, no window above the limit, no call unpaid.

    The second one meets full buckets, so that it starts with the largest burst that the preset allows.
    """
    with twelve_workers(stated, mode=mode, preset=preset) as rig:
        answers(rig, add(rig, "mixed", mixed(windows, stated, seed=1)), 60)
        many = len(calls(rig.sandbox))
        rest(rig, stated, _BURST[preset])
        answers(rig, add(rig, "small", small(windows, stated, seed=2)), 60)

        rig.assert_clean()
        assert_kept(rig, rig.sandbox)
        assert "in_flight" not in rig.budget()
        made = calls(rig.sandbox)
        shares = used(made[:many], stated), used(made[many:], stated)
        print(f"{mode}: used {shares[0]:.3f} of tokens, {shares[1]:.3f} of requests")
        assert min(shares) > least_used


def test_refunds_that_are_found_out_cause_no_refusal() -> None:
    """A provider gives unused tokens back, and `settlement = auto` learns of it in two floods: no 429 meanwhile."""
    with twelve_workers(_WINDOW, mode="bucket", preset="continuous", refund=True) as rig:
        answers(rig, add(rig, "steady", mixed(0.8, _WINDOW, seed=3)), 60)
        rest(rig, _WINDOW, _BURST["continuous"])
        # Half of the limit at once: what comes back of that shows in the headers.
        answers(rig, add(rig, "burst", mixed(1.4, _WINDOW, seed=4)), 60)

        rig.assert_clean()
        assert_kept(rig, rig.sandbox)
        ours = rig.metric("tokenweir_tokens_total", state="refunded")
        print(f"given back {rig.book().premium.refunded} tokens, of which {ours:.0f} were used again")
        assert rig.book().premium.refunded > ours
        assert "in_flight" not in rig.budget()
