"""The command `plan`: proves a configuration in virtual time. The simulator is loaded only to run it."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.parser import UsageError

if TYPE_CHECKING:
    from pipeline.plan.plan import Plan, Run
    from pipeline.plan.proof import Progress

# As the simulator names them, which isn't loaded for `--help`; tests/plan compares.
MODES = ("bucket", "bucket/6", "sliding", "fixed", "10s", "1s")
PROFILES = ("constant", "bursts", "story")


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise ValueError
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError
    return value


_share.__name__, _positive.__name__ = "share between 0 and 1", "positive number"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All options of `plan`."""
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument("--profile", choices=PROFILES, help="default: constant and bursts")
    traffic.add_argument("--traffic", type=Path, metavar="FILE", help="requests as they came, one JSON object a line")
    traffic.add_argument(
        "--largest-share", type=_share, default=0.02, metavar="X", help="requests of up to X of the token limit (0.02)"
    )
    traffic.add_argument(
        "--minutes", type=_positive, metavar="N", help="how long to play (default: 10; with --traffic, all)"
    )
    provider = parser.add_argument_group("provider")
    provider.add_argument("--mode", choices=MODES, help="count like this; default: all that the preset is safe against")
    provider.add_argument("--all-modes", action="store_true", help="every mode, each under the preset that fits it")
    provider.add_argument("--send-within-s", type=_positive, metavar="S", help="from a grant to the provider's count")
    provider.add_argument("--foreign", type=_share, default=0.0, metavar="SHARE", help="other programs take this share")
    provider.add_argument("--refund", action="store_true", help="it gives tokens back that were reserved but not used")
    provider.add_argument(
        "--stops-refunding-at", type=_positive, metavar="S", help="and ends that after so many seconds"
    )
    pool = parser.add_argument_group("pool")
    pool.add_argument("--workers", type=int, choices=range(1, 1001), default=12, metavar="N", help="processes (12)")
    pool.add_argument("--edge-slots", type=int, choices=range(1001), metavar="N", help="calls at once at the edge")
    pool.add_argument("--cold-start", action="store_true", help="begin as after a loss of all state, not rested")
    pool.add_argument("--delays", choices=("mixed", "random", "extremes"), default="mixed", help=argparse.SUPPRESS)
    pool.add_argument("--pool", metavar="NAME", help="default: the first one configured")
    pool.add_argument("--config", metavar="FILE", type=Path, help="default: TOKENWEIR_CONFIG, else tokenweir.toml")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="other dice; the same seed, the same figures")
    parser.add_argument("--json", action="store_true", help="one JSON object, for machines")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the first run, as SVG")


def run(args: argparse.Namespace) -> int:
    """Play the configuration and report; 1 if a call was refused, or a window held more than its limit.

    Raises:
        UsageError: options that contradict each other.
        ConfigError: the configuration or the traffic can't be used.
    """
    _check(args)
    from pipeline.cli.output import remark, say_json
    from pipeline.cli.target import configured
    from pipeline.plan.plan import draw, plan

    name, pool = configured(args).pool(args.pool)
    planned = plan(pool, args)
    with _bar(planned) as progress:
        runs = planned.play(progress)
    if args.plot is not None:
        args.plot.write_text(draw(runs[0]), "utf-8")
        remark(f"{args.plot}: mode {runs[0].mode}, {runs[0].results[0].load} {runs[0].results[0].bound}")
    if args.json:
        say_json(planned.report(runs))
    else:
        _tell(name, planned, runs)
    return 1 if any(each.broken for each in runs) else 0


def _check(args: argparse.Namespace) -> None:
    if args.mode and args.all_modes:
        raise UsageError("--mode names one mode and --all-modes takes every one; give one of them")
    if args.profile and args.traffic:
        raise UsageError("--profile and --traffic both say what comes; give one of them")
    if args.stops_refunding_at and not args.refund:
        raise UsageError("--stops-refunding-at goes with --refund")
    if args.plot is not None and args.plot.suffix != ".svg":
        raise UsageError(f"pictures are written as SVG only: name a file such as {args.plot.with_suffix('.svg').name}")


@contextmanager
def _bar(planned: Plan) -> Iterator[Progress]:
    """A progress bar on stderr for the time that is played, where somebody can see it."""
    if not sys.stderr.isatty():
        yield lambda _seconds: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("playing", total=planned.seconds)
        yield lambda played: progress.update(bar, completed=played)


def _tell(name: str, planned: Plan, runs: list[Run]) -> None:
    from pipeline.cli.output import mark, say, say_table, seconds

    say(f"pool {name}: {planned.about}\n")
    rows = [
        (
            each.mode,
            each.preset,
            f"{each.send_within_s:g} s",
            f"{result.load} {result.bound}".rstrip(),
            result.rejected,
            f"{result.worst_window_ratio:.1%}",
            _ratio(result.foreign_left_used_ratio if planned.foreign else result.used_ratio),
            f"{result.edge_share:.1%}",
            *(_waits(result.waits.get(rank)) for rank in planned.classes(runs)),
        )
        for each in runs
        for result in each.results
    ]
    classes = [f"{rank} waits p50/95/99" for rank in planned.classes(runs)]
    used = "used of what others left" if planned.foreign else "used"
    names = ("mode", "preset", "sent within", "load", "rejected", "worst window", used, "edge", *classes)
    say_table(names, rows, numbers=("rejected", "worst window", used, "edge"), whole=names)
    say()
    for each in runs:
        for result in each.results:
            where = f"{each.mode}, {result.load} {result.bound}".rstrip()
            for alarm, (often, first_s) in result.alarms.items():
                say(f"{where}: {alarm.replace('_', ' ')}: {often:,} times, first after {seconds(first_s)}")
            for reason, count in result.refused.items():
                say(f"{where}: refused by the gate as {reason.replace('_', ' ')}: {count:,}")
    bad = [each for each in runs if each.broken]
    if bad:
        say(f"{mark('FAIL')} {', '.join(each.mode for each in bad)}: refused calls, or a window above its limit")
    else:
        say(f"{mark('ok')} no promise broken")


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _waits(spread: object) -> str:
    if spread is None:
        return "-"
    return "/".join(f"{getattr(spread, name):.2f}" for name in ("p50", "p95", "p99")) + " s"
