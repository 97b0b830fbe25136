"""From options to runs to a report: what `tokenweir plan` does, without its speech."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from pipeline.config import Pool
from pipeline.intake import largest_request
from pipeline.limits import allowed as allowed_of
from pipeline.plan.asked import CLASSES
from pipeline.plan.gate import Room
from pipeline.plan.loads import Load, loads
from pipeline.plan.modes import CLAIMED, FITTING, MODES
from pipeline.plan.picture import draw as draw_picture
from pipeline.plan.proof import Case, Progress, Result, broken, play, worst
from pipeline.plan.trace import Length, Trace
from pipeline.sandbox.settings import Enforcement as Mode
from tokenweir.errors import ConfigError
from tokenweir.terms import Allowed, terms

_MINUTES: Final = 10.0
# One request against all modes must stay a matter of seconds.
_MINUTES_OF_ALL: Final = 8.0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One mode under one preset, and what each load met with."""

    mode: Mode
    case: Case
    results: tuple[Result, ...]

    @property
    def preset(self) -> str:
        return ", ".join(dict.fromkeys(each.enforcement for each in self.case.allowed))

    @property
    def send_within_s(self) -> float:
        return max(each.late_s for each in self.case.allowed)

    @property
    def broken(self) -> bool:
        return broken(self.case, self.results)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Which modes are played, each with its case and loads."""

    cases: dict[Mode, Case]
    loads: dict[Mode, list[Load]]
    length: Length | None
    length_s: float
    watch: bool
    options: dict[str, Any]

    @property
    def seconds(self) -> float:
        """Virtual time of all runs."""
        return self.length_s * sum(map(len, self.loads.values()))

    @property
    def foreign(self) -> bool:
        """Whether other programs spend from the same keys."""
        return any(case.foreign_share > 0 for case in self.cases.values())

    @property
    def about(self) -> str:
        """What is played, in a line."""
        limits = "; ".join(
            ", ".join(f"{name} {limit:,}" for name, limit in each.limits.items())
            for each in next(iter(self.cases.values())).allowed
        )
        load = " and ".join(dict.fromkeys(each.name for each in next(iter(self.loads.values()))))
        more = f", {self.length.requests:,} requests" if self.length else ""
        return f"{limits}; {load}{more}, {self.length_s / 60:.1f} min of virtual time"

    def play(self, progress: Progress) -> list[Run]:
        """Play everything; `progress` hears how many seconds were played."""
        runs: list[Run] = []
        played = 0.0
        for mode, case in self.cases.items():
            results: list[Result] = []
            for load in self.loads[mode]:
                watch = self.watch and not runs and not results
                results.append(play(case, mode, load, progress=_further(progress, played), watch=watch))
                played += self.length_s
            runs.append(Run(mode=mode, case=case, results=tuple(results)))
        return runs

    def classes(self, runs: Sequence[Run]) -> list[str]:
        """The classes that anything came of."""
        return [name for name in CLASSES if any(name in result.waits for run in runs for result in run.results)]

    def report(self, runs: Sequence[Run]) -> dict[str, Any]:
        """One object for machines."""
        return {
            "modes": {run.mode: _report(run) for run in runs},
            "ok": not any(run.broken for run in runs),
            **self.options,
        }


def _further(progress: Progress, played_s: float) -> Progress:
    return lambda now: progress(played_s + now)


def plan(pool: Pool, args: Namespace) -> Plan:
    """What the options ask for.

    Raises:
        ConfigError: there is nothing that could be played.
    """
    configured = [allowed_of(deployment) for deployment in pool.deployments]
    if not any(name in ("rpm", "tpm", "itpm", "otpm") for each in configured for name in each.limits):
        raise ConfigError("only day limits are configured, and a plan plays minutes; set rpm or tpm")
    tasks = frozenset(pool.edge.tasks) if pool.edge else frozenset()
    trace = Trace(args.traffic, tasks) if args.traffic is not None else None
    length = trace.length() if trace else None
    minutes = args.minutes or (None if trace else _MINUTES_OF_ALL if args.all_modes else _MINUTES)
    length_s = minutes * 60 if minutes else length.seconds if length else 0.0
    cases, played = {}, {}
    for mode in _modes(args, configured):
        allowed = [_adapted(each, mode, args) for each in configured]
        cases[mode] = Case(
            allowed=allowed,
            room=_room(pool, args),
            length_s=minutes * 60 if minutes else None,
            seed=args.seed,
            delays=args.delays,
            foreign_share=args.foreign,
            refunds=args.refund,
            stops_refunding_s=args.stops_refunding_at or math.inf,
            attempts=pool.max_attempts,
            cold=args.cold_start,
        )
        played[mode] = loads(args.profile, allowed, largest_share=args.largest_share, seed=args.seed, file=trace)
    options = {
        "seed": args.seed,
        "minutes": length_s / 60,
        "largest_share": args.largest_share,
        "foreign": args.foreign,
    }
    return Plan(
        cases=cases, loads=played, length=length, length_s=length_s, watch=args.plot is not None, options=options
    )


def draw(run: Run) -> str:
    """The first load of a run as a picture."""
    return draw_picture(run.results[0], run.mode, [terms(each) for each in run.case.allowed])


def _modes(args: Namespace, configured: Sequence[Allowed]) -> list[Mode]:
    if args.all_modes:
        return list(MODES)
    if args.mode:
        return [cast("Mode", args.mode)]
    claimed = [CLAIMED[each.enforcement] for each in configured]
    shared = [mode for mode in claimed[0] if all(mode in each for each in claimed)]
    if not args.foreign and not args.refund:
        return shared
    # Only of a bucket do the headers tell what others take and what comes back.
    return ["bucket"]


def _adapted(allowed: Allowed, mode: Mode, args: Namespace) -> Allowed:
    preset = FITTING[mode] if args.all_modes else allowed.enforcement
    late_s = args.send_within_s or allowed.send_within_s
    return msgspec.structs.replace(allowed, enforcement=preset, send_within_s=late_s)


def _room(pool: Pool, args: Namespace) -> Room:
    configured = pool.edge.concurrency * args.workers if pool.edge else 0
    edge = configured if args.edge_slots is None else args.edge_slots
    return Room(
        premium=pool.premium_concurrency * args.workers,
        edge=edge,
        edge_queue=pool.edge.queue if pool.edge else 0,
        most_waiting=pool.max_waiting,
        largest_tokens=largest_request(pool),
    )


def _report(run: Run) -> dict[str, Any]:
    report: dict[str, Any] = {
        **msgspec.to_builtins(worst(run.results)),
        "preset": run.preset,
        "send_within_s": run.send_within_s,
        "broken": run.broken,
    }
    for name, group in (("bound_by", "constant"), ("bursts", "bursts")):
        results = {result.bound: _plain(result) for result in run.results if result.load == group}
        if results:
            report[name] = results
    if run.results[0].load not in ("constant", "bursts"):
        report |= _plain(run.results[0])
    return report


def _plain(result: Result) -> dict[str, Any]:
    return {
        name: msgspec.to_builtins(getattr(result, name))
        for name in result.__struct_fields__
        if name not in ("seconds", "load")
    }
