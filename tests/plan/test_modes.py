"""What `tokenweir plan` proves of the presets, and that it can find them wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from pipeline.cli import plan as command
from pipeline.plan.figures import Tally
from pipeline.plan.gate import Room
from pipeline.plan.loads import Profile, loads
from pipeline.plan.modes import CLAIMED, FITTING, MODES
from pipeline.plan.proof import Case, play, worst
from pipeline.plan.provider import Provider
from pipeline.plan.simulation import SECOND, Setup, Simulation
from pipeline.sandbox.settings import Enforcement as Mode
from tests.plan.conftest import Plan
from tokenweir.terms import Allowed, Limit, terms

# By mode, what must be used: most of the binding limit. Whole requests in slices of a second leave a fifth.
_USED = {"bucket": 0.95, "bucket/6": 0.95, "sliding": 0.95, "fixed": 0.95, "10s": 0.96, "1s": 0.79}
_ALLOWED = Allowed(limits={"rpm": 500, "tpm": 30_000})


def _case(**settings: Any) -> Case:
    return Case(allowed=[msgspec.structs.replace(_ALLOWED, **settings)], room=Room(premium=192), length_s=300.0)


def _played(case: Case, mode: Mode, profile: Profile | None) -> Iterator[tuple[int, float | None, float]]:
    for load in loads(profile, case.allowed, largest_share=0.02, seed=1):
        yield worst([play(case, mode, load, progress=lambda _seconds: None)])


@pytest.mark.slow
def test_every_mode_is_withstood_by_its_preset(plan: Plan) -> None:
    """No provider refuses anything or holds more than its limit in a window, and hardly any of it is left unused."""
    said = plan("--all-modes", "--json", "--minutes", "6")

    report = said.json
    assert said.code == 0
    assert list(report["modes"]) == ["bucket", "bucket/6", "sliding", "fixed", "10s", "1s"]
    for mode, figures in report["modes"].items():
        assert figures["rejected"] == 0, mode
        assert figures["worst_window_ratio"] <= 1.0, mode
        assert figures["used_ratio"] >= _USED[mode], mode
        assert figures["preset"] == FITTING[cast("Mode", mode)]
        assert figures["send_within_s"] == (0.2 if mode in ("10s", "1s") else 1.0)
        assert set(figures["bound_by"]) == set(figures["bursts"]) == {"rpm", "tpm"}
        both = figures["bound_by"].values()
        assert figures["used_ratio"] == min(each["used_ratio"] for each in both)


def test_a_wrong_preset_is_found(plan: Plan) -> None:
    """Large bursts against a provider that allows a sixth at once: the plan says so, and exits with 1."""
    config = "[[pools.main.deployments]]\nrpm = 500\ntpm = 30_000\nenforcement = 'continuous'\n"

    said = plan("--mode", "bucket/6", "--minutes", "5", config=config)

    assert said.code == 1
    assert "FAIL bucket/6" in said.out


def test_textbook_bucket_is_found() -> None:
    """A bucket of the whole limit without a window, as in most libraries, lets nearly twice the limit through."""
    allowed = msgspec.structs.replace(_ALLOWED, settlement="none")
    known = terms(allowed)
    limits = tuple(_textbook(limit) for limit in known.limits)
    provider, tally = Provider(allowed, "sliding", seed=1), Tally(60 * SECOND)
    setup = Setup(terms=[msgspec.structs.replace(known, limits=limits)], room=Room(premium=2000))
    (load,) = [each for each in loads("bursts", [allowed], largest_share=0.02, seed=1) if each.bound == "rpm"]

    simulation = Simulation(setup, load.make(), [provider], tally)
    simulation.rest()
    simulation.run(600 * SECOND)

    assert provider.rejected > 0


def _textbook(limit: Limit) -> Limit:
    whole = float(limit.limit)
    return msgspec.structs.replace(
        limit, limit=limit.limit * 3, capacity=whole, rate=whole / limit.window_us, cold=whole, slot_us=limit.window_us
    )


def test_late_calls_are_found() -> None:
    """A worker that sends later than the gate was told brings refusals: the plan doesn't look away from the delay."""
    case = _case(enforcement="quantised:10s", send_within_s=0.2)
    provider = Provider(case.allowed[0], "10s", seed=1)
    late = msgspec.structs.replace(case.allowed[0], send_within_s=5.0)
    setup = Setup(
        terms=[msgspec.structs.replace(terms(case.allowed[0]), allowed=late)], room=case.room, delays="random"
    )
    load = loads("constant", case.allowed, largest_share=0.02, seed=1)[0]

    Simulation(setup, load.make(), [provider], Tally(60 * SECOND)).run(300 * SECOND)

    assert provider.rejected > 0


@pytest.mark.parametrize("delays", ["random", "extremes"])
def test_any_delay_up_to_the_stated_one_is_withstood(delays: Any) -> None:
    """Whether calls take any time up to J, or by turns nothing and all of it, none is refused."""
    case = msgspec.structs.replace(_case(), delays=delays)

    for rejected, _, fullest in _played(case, "fixed", None):
        assert rejected == 0
        assert fullest <= 1.0


def test_large_requests_are_withstood() -> None:
    """With requests of up to a tenth of the limit nothing is refused and at least 91 % is used."""
    case = msgspec.structs.replace(_case(), length_s=900.0)
    tokens = loads("constant", case.allowed, largest_share=0.1, seed=2)[1]

    result = play(case, "sliding", tokens, progress=lambda _seconds: None)

    assert (result.rejected, result.bound) == (0, "tpm")
    assert result.used_ratio is not None
    assert result.used_ratio >= 0.91


def test_cold_start_is_withstood() -> None:
    """Without any state nothing is refused either."""
    case = msgspec.structs.replace(_case(), cold=True, length_s=180.0)

    assert [rejected for rejected, _, _ in _played(case, "sliding", "constant")] == [0, 0]


def test_same_seed_same_figures(plan: Plan) -> None:
    """A plan can be repeated: the same seed gives the same figures, another seed gives others."""
    words = ("--mode", "sliding", "--profile", "story", "--minutes", "3", "--json")

    first, again, other = plan(*words).json, plan(*words).json, plan(*words, "--seed", "2").json

    assert first == again
    assert first["modes"] != other["modes"]


def test_options_name_what_there_is() -> None:
    """The modes that can be typed are the modes that there are, and every preset's claim is of known ones."""
    assert command.MODES == MODES
    assert set(FITTING) == set(MODES)
    assert all(set(claimed) <= set(MODES) for claimed in CLAIMED.values())
    assert all(mode in CLAIMED[preset] for mode, preset in FITTING.items())
