"""Plays a configuration against an enforcement mode and says what came of it: the figures of `tokenweir plan`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from pipeline.plan.asked import CLASSES
from pipeline.plan.figures import Seconds, Spread, Tally
from pipeline.plan.gate import Room
from pipeline.plan.loads import Load
from pipeline.plan.provider import Account, Provider
from pipeline.plan.simulation import SECOND, Delays, Setup, Simulation
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
        used_ratio: of the limit used most, less what others took of it, over whole windows from the second on in
            which something waited all the time; None = there was no such window.
        worst_window_ratio: the most that any trailing window held at the provider, of its limit.
        edge_share: of all requests that were answered.
        used, worst: the same, by limit.
        alarms: raised by the provider's headers: how often, and when first, in seconds.
    """

    load: str
    bound: str
    rejected: int
    given_up: int
    admitted: int
    refused: dict[str, int]
    used_ratio: float | None
    worst_window_ratio: float
    edge_share: float
    waits: dict[str, Spread]
    first_tokens: dict[str, Spread]
    used: dict[str, float | None]
    worst: dict[str, float]
    used_by_window: tuple[float, ...]
    alarms: dict[str, tuple[int, float]]
    settlement: str
    seconds: Seconds | None = None


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
    windows = [window for window in range(1, int(end_us / SECOND // setup.window_s)) if window not in tally.idle]
    refunding = any(simulation.budgets.look(index, simulation.clock()).refunds for index in range(len(providers)))
    return _result(load, providers, tally, windows, "refund" if refunding else "none")


def worst(results: Sequence[Result]) -> tuple[int, float | None, float]:
    """Most rejected, least used and fullest window of several runs."""
    # How much is used says something only of work without end.
    saturating = [result for result in results if result.load != "bursts"] or results
    used = [result.used_ratio for result in saturating if result.used_ratio is not None]
    return (
        max(result.rejected for result in results),
        min(used, default=None),
        max(result.worst_window_ratio for result in results),
    )


def broken(case: Case, results: Sequence[Result]) -> bool:
    """Whether a promise was broken: calls were refused, or some window held more than the limit."""
    rejected, _, fullest = worst(results)
    if case.refunds and case.stops_refunding_s < math.inf:
        # What was given back and is counted after all no gate can take back; the provider refuses what doesn't fit.
        return rejected > _REFUSALS_TO_NOTICE
    return rejected > 0 or fullest > 1


def _result(load: Load, providers: Sequence[Provider], tally: Tally, windows: Sequence[int], settlement: str) -> Result:
    accounts: dict[str, list[tuple[Account, Account]]] = {}
    for provider in providers:
        for name, own in provider.accounts.items():
            accounts.setdefault(name, []).append((own, provider.foreign[name]))
    used: dict[str, float | None] = {name: _used(accounts[name], windows) for name in WINDOW_LIMITS if name in accounts}
    binding = load.bound or max(used, key=lambda name: used[name] or 0.0, default="")
    fullest = {name: max(own.worst_ratio for own, _ in each) for name, each in accounts.items()}
    edge = sum(routes["edge"] for routes in tally.routes)
    served = edge + sum(routes["premium"] for routes in tally.routes)
    heard = [rank for rank in range(len(CLASSES)) if tally.waits[rank].count]
    return Result(
        load=load.name,
        bound=binding,
        rejected=sum(provider.rejected for provider in providers),
        given_up=tally.given_up,
        admitted=sum(provider.admitted for provider in providers),
        refused=dict(tally.refusals),
        used_ratio=used.get(binding),
        worst_window_ratio=max(fullest.values()),
        edge_share=edge / served if served else 0.0,
        waits={CLASSES[rank]: tally.waits[rank].spread() for rank in heard},
        first_tokens={CLASSES[rank]: tally.first_tokens[rank].spread() for rank in heard},
        used=used,
        worst=fullest,
        used_by_window=tuple(_used(accounts[binding], [window]) or 0.0 for window in windows) if binding else (),
        alarms=dict(tally.alarms),
        settlement=settlement,
        seconds=tally.seconds,
    )


def _used(accounts: Sequence[tuple[Account, Account]], windows: Sequence[int]) -> float | None:
    """What we used in these windows of what others left, in the deployment where that is least."""
    shares = []
    for own, others in accounts:
        left = sum(max(0.0, 1 - others.used_ratio(window)) for window in windows)
        if left > 0:
            shares.append(sum(own.used_ratio(window) for window in windows) / left)
    return min(shares, default=None)
