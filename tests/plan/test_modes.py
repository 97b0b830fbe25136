"""What `tokenweir plan` proves of the presets, and that it can find them wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from pipeline.cli import plan as command
from pipeline.plan.figures import Tally
from pipeline.plan.gate import Room
from pipeline.plan.loads import loads
from pipeline.plan.modes import CLAIMED, FITTING, MODES
from pipeline.plan.provider import Provider
from pipeline.plan.simulation import SECOND, Setup, Simulation
from pipeline.sandbox.settings import Enforcement as Mode
from tests.plan.cases import ALLOWED, case, played
from tests.plan.conftest import Plan
from tokenweir.terms import Enforcement as Preset
from tokenweir.terms import Limit, terms

# By mode, what must be used: most of the binding limit. Whole requests in slices of a second leave a fifth.
_USED = {"bucket": 0.95, "bucket/6": 0.95, "sliding": 0.95, "fixed": 0.95, "10s": 0.96, "1s": 0.79}


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


@pytest.mark.parametrize(("preset", "mode"), [("auto", "10s"), ("auto", "1s"), ("quantised:10s", "1s")])
def test_every_wrong_preset_is_found(preset: Preset, mode: Mode) -> None:
    """A preset that doesn't withstand a mode is refused calls by it: the claims leave out nothing that would hold."""
    results = played(case(enforcement=preset), mode, "bursts")

    assert mode not in CLAIMED[preset]
    assert sum(result.rejected for result in results) > 0


def test_textbook_bucket_is_found() -> None:
    """A bucket of the whole limit without a window, as in most libraries, lets nearly twice the limit through."""
    allowed = msgspec.structs.replace(ALLOWED, settlement="none")
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
    in_time = case(enforcement="quantised:10s", send_within_s=0.2)
    provider = Provider(in_time.allowed[0], "10s", seed=1)
    late = msgspec.structs.replace(in_time.allowed[0], send_within_s=5.0)
    known = msgspec.structs.replace(terms(in_time.allowed[0]), allowed=late)
    load = loads("constant", in_time.allowed, largest_share=0.02, seed=1)[0]

    setup = Setup(terms=[known], room=in_time.room, delays="random")
    Simulation(setup, load.make(), [provider], Tally(60 * SECOND)).run(300 * SECOND)

    assert provider.rejected > 0


@pytest.mark.parametrize("delays", ["random", "extremes"])
def test_any_delay_up_to_the_stated_one_is_withstood(delays: Any) -> None:
    """Whether calls take any time up to J, or by turns nothing and all of it, none is refused."""
    for result in played(case(delays=delays), "fixed", None):
        assert result.rejected == 0
        assert result.worst_window_ratio <= 1.0


@pytest.mark.parametrize("mode", ["sliding", "fixed", "bucket", "bucket/6"])
def test_large_requests_are_withstood(mode: Mode) -> None:
    """With requests of up to a tenth of the limit nothing is refused and at least 91 % is used."""
    for seed in (1, 2):
        large = case(minutes=15, seed=seed)

        (result,) = played(large, mode, "constant", bound="tpm", largest_share=0.1)

        assert result.rejected == 0
        assert result.worst_window_ratio <= 1.0
        assert result.used_ratio is not None
        assert result.used_ratio >= 0.91


def test_slices_are_withstood_by_slow_workers() -> None:
    """Where requests are counted in slices of 10 s and calls take up to a second, 89 % is used, and none is refused."""
    results = played(case(enforcement="quantised:10s", send_within_s=1.0), "10s", None)

    for result in results:
        assert result.rejected == 0
        assert result.worst_window_ratio <= 1.0
    for result in results[:2]:  # of work without end
        assert result.used_ratio is not None
        assert result.used_ratio >= 0.89


def test_cold_start_is_withstood() -> None:
    """Without any state nothing is refused either."""
    results = played(case(cold=True, minutes=3), "sliding", "constant")

    assert [result.rejected for result in results] == [0, 0]


def test_same_seed_same_figures(plan: Plan) -> None:
    """A plan can be repeated: the same seed gives the same figures, another seed gives others."""
    words = ("--mode", "sliding", "--profile", "story", "--minutes", "3", "--json")

    first, again, other = plan(*words).json, plan(*words).json, plan(*words, "--seed", "2").json

    assert first == again
    assert first["modes"] != other["modes"]


def test_machines_find_what_the_documentation_names(plan: Plan) -> None:
    """Every field of the JSON stands in the documentation."""
    text = (Path(__file__).parents[2] / "docs" / "plan.md").read_text("utf-8")

    report = plan("--mode", "bucket", "--foreign", "0.3", "--minutes", "3", "--json").json

    figures = report["modes"]["bucket"]
    load = figures["bound_by"]["tpm"]
    names = {*report, *figures, *load, *load["waits"]["interactive"]}
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_options_name_what_there_is() -> None:
    """The modes that can be typed are the modes that there are, and every preset's claim is of known ones."""
    assert command.MODES == MODES
    assert set(FITTING) == set(MODES)
    assert all(set(claimed) <= set(MODES) for claimed in CLAIMED.values())
    assert all(mode in CLAIMED[preset] for mode, preset in FITTING.items())
