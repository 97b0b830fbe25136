"""Plays a configuration against an enforcement mode and says what came of it: the figures of `tokenweir plan`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from pipeline.plan.asked import CLASSES
from pipeline.plan.figures import Seconds, Spread, Tally
from pipeline.plan.gate import Room
from pipeline.plan.loads import Load
from pipeline.plan.provider import Provider
from pipeline.plan.simulation import SECOND, Delays, Setup, Simulation
from pipeline.sandbox.limits import Dimension
from pipeline.sandbox.settings import Enforcement as Mode
from tokenweir.terms import WINDOW_LIMITS, Allowed, terms

Progress = Callable[[float], None]

# With refunds that end without notice, so many refusals are the price of finding out.
_REFUSALS_TO_NOTICE: Final = 3


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same in all runs of a plan.

    Attributes:
        length_s: None = until the traffic has ended and nothing waits.
        foreign_share: of the limits, taken by other programs on the key.
        cold: begin without any state, as after its loss, instead of well rested.
        refunds, stops_refunding_s: whether the provider gives unused tokens back, and when it ends that.
    """

    allowed: Sequence[Allowed]
    room: Room
    length_s: float | None
    seed: int = 1
    delays: Delays = "mixed"
    foreign_share: float = 0.0
    refunds: bool = False
    stops_refunding_s: float = math.inf
    attempts: int = 3
    cold: bool = False


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What one load met with in one mode.

    Attributes:
        rejected: calls that the provider refused; given_up: requests that failed for it.
        refused: by the gate, at once, with the reason.
        used_ratio: of the limit used most, over whole windows from the second on in which something waited all the
            time; None = there was no such window.
        foreign_used_ratio: of the same limit in the same windows, by other programs on the key; None = there are none.
        foreign_left_used_ratio: used by us of what they left: refill, and what a bucket held before and no longer
            holds, less their use. None = there are no others.
        worst_window_ratio: the most that any trailing window held at the provider, of its limit.
        edge_share, deferred_share: of all requests that were answered, or went to a provider, by the edge, and after
            they had waited in the backlog.
        used, worst: used_ratio and worst_window_ratio by limit. used_by_window: of the binding limit, in each of the
            windows counted.
        alarms: raised by the provider's headers: how often, and when first, in seconds.
    """

    load: str
    bound: str
    rejected: int
    given_up: int
    admitted: int
    refused: dict[str, int]
    used_ratio: float | None
    foreign_used_ratio: float | None
    foreign_left_used_ratio: float | None
    worst_window_ratio: float
    edge_share: float
    deferred_share: float
    waits: dict[str, Spread]
    first_tokens: dict[str, Spread]
    used: Mapping[Dimension, float | None]
    worst: Mapping[Dimension, float]
    used_by_window: tuple[float, ...]
    alarms: dict[str, tuple[int, float]]
    settlement: str
    seconds: Seconds | None = None


class Worst(msgspec.Struct, frozen=True, kw_only=True):
    """Of several runs: most rejected, least used, the fullest window. See `Result`."""

    rejected: int
    used_ratio: float | None
    foreign_left_used_ratio: float | None
    worst_window_ratio: float


def play(case: Case, mode: Mode, load: Load, *, progress: Progress, watch: bool = False) -> Result:
    """Run `load` against providers of that mode.

    Args:
        progress: called now and then with the time that was played, in seconds.
        watch: keep what a picture needs.
    """
    providers = [
        Provider(
            allowed,
            mode,
            seed=case.seed + index,
            refunds_from_s=0.0 if case.refunds else math.inf,
            refunds_until_s=case.stops_refunding_s,
            foreign_share=case.foreign_share,
        )
        for index, allowed in enumerate(case.allowed)
    ]
    setup = Setup(
        terms=[terms(allowed) for allowed in case.allowed],
        room=case.room,
        delays=case.delays,
        seed=case.seed,
        most_attempts=case.attempts,
    )
    tally = Tally(round(setup.window_s * SECOND))
    tally.seconds = Seconds() if watch else None
    simulation = Simulation(setup, load.make(), providers, tally)
    if not case.cold:
        simulation.rest()
    until_us = None if case.length_s is None else round(case.length_s * SECOND)
    end_us = simulation.run(until_us, lambda now: progress(now / SECOND))
    for provider in providers:
        provider.come_to(end_us / SECOND)
    windows = [window for window in range(1, int(end_us / SECOND // setup.window_s)) if window not in tally.idle]
    refunding = any(simulation.budgets.look(index, simulation.clock()).refunds for index in range(len(providers)))
    return _result(case, load, providers, tally, windows, settlement="refund" if refunding else "none")


def worst(results: Sequence[Result]) -> Worst:
    """The worst of several runs."""
    # How much is used says something only of work without end.
    saturating = [result for result in results if result.load != "bursts"] or results
    used = [result.used_ratio for result in saturating if result.used_ratio is not None]
    left = [result.foreign_left_used_ratio for result in saturating if result.foreign_left_used_ratio is not None]
    return Worst(
        rejected=max(result.rejected for result in results),
        used_ratio=min(used, default=None),
        foreign_left_used_ratio=min(left, default=None),
        worst_window_ratio=max(result.worst_window_ratio for result in results),
    )


def broken(case: Case, results: Sequence[Result]) -> bool:
    """Whether a promise was broken: calls were refused, or some window held more than the limit."""
    found = worst(results)
    if case.refunds and case.stops_refunding_s < math.inf:
        # What was given back and is counted after all no gate can take back; the provider refuses what doesn't fit.
        return found.rejected > _REFUSALS_TO_NOTICE
    return found.rejected > 0 or found.worst_window_ratio > 1


def _result(
    case: Case, load: Load, providers: Sequence[Provider], tally: Tally, windows: Sequence[int], *, settlement: str
) -> Result:
    names = dict.fromkeys(name for provider in providers for name in provider.accounts)
    used: dict[Dimension, float | None] = {
        name: _used(providers, name, windows) for name in names if name in WINDOW_LIMITS
    }
    most = max(used, key=lambda name: used[name] or 0.0, default=None)
    binding = next((name for name in used if name == load.bound), most)
    others = case.foreign_share > 0
    fullest = {
        name: max(each.accounts[name].worst_ratio for each in providers if name in each.accounts) for name in names
    }
    edge = sum(routes["edge"] for routes in tally.routes)
    served = edge + sum(routes["premium"] for routes in tally.routes)
    heard = [rank for rank in range(len(CLASSES)) if tally.waits[rank].count]
    return Result(
        load=load.name,
        bound=binding or "",
        rejected=sum(provider.rejected for provider in providers),
        given_up=tally.given_up,
        admitted=sum(provider.admitted for provider in providers),
        refused=dict(tally.refusals),
        used_ratio=used[binding] if binding else None,
        foreign_used_ratio=_used(providers, binding, windows, others=True) if binding and others else None,
        foreign_left_used_ratio=_left_used(providers, binding, windows) if binding and others else None,
        worst_window_ratio=max(fullest.values()),
        edge_share=edge / served if served else 0.0,
        deferred_share=tally.deferred / served if served else 0.0,
        waits={CLASSES[rank]: tally.waits[rank].spread() for rank in heard},
        first_tokens={CLASSES[rank]: tally.first_tokens[rank].spread() for rank in heard},
        used=used,
        worst=fullest,
        used_by_window=tuple(_used(providers, binding, [window]) or 0.0 for window in windows) if binding else (),
        alarms=dict(tally.alarms),
        settlement=settlement,
        seconds=tally.seconds,
    )


def _used(
    providers: Sequence[Provider], name: Dimension, windows: Sequence[int], *, others: bool = False
) -> float | None:
    """The use of a limit in these windows, by us or by others, in the deployment where that is least."""
    accounts = [provider.foreign if others else provider.accounts for provider in providers]
    shares = [sum(map(each[name].used_ratio, windows)) / len(windows) for each in accounts if name in each and windows]
    return min(shares, default=None)


def _left_used(providers: Sequence[Provider], name: Dimension, windows: Sequence[int]) -> float | None:
    """What we used of what others left, in the deployment where that is least.

    A bucket that was full when the first of some windows began has let us use more than its refill. What it stores
    meanwhile was left unused, whoever takes it later.
    """
    shares = []
    for provider in providers:
        if name not in provider.accounts:
            continue
        own, foreign, stored = provider.accounts[name], provider.foreign[name], provider.stored[name]
        left = sum(1 - foreign.used_ratio(window) for window in windows)
        left += sum(max(0.0, stored[first] - stored[after]) for first, after in _spells(windows))
        if left > 0:
            # Rounded: sums of the same numbers in another order differ in the last digit.
            shares.append(round(sum(map(own.used_ratio, windows)) / left, 9))
    return min(shares, default=None)


def _spells(windows: Sequence[int]) -> list[tuple[int, int]]:
    """Windows that follow each other, as the first of them and the one after the last."""
    known = set(windows)
    firsts = [window for window in windows if window - 1 not in known]
    lasts = [window for window in windows if window + 1 not in known]
    return [(first, last + 1) for first, last in zip(firsts, lasts, strict=True)]
