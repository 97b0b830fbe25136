"""What the pipeline costs: `hops`, `gate`, `cancel`, `limiter`, or all of them, each beside its floor or its peers.

Such figures depend on the machine and on what else it does: everything to be compared is measured in one run, in
turn, and medians are shown. Goals stand beside; a bench measures and asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.bench import cancel, gate, hops, limiter
from tests.bench.meter import Target, conditions, servers

BENCHES = ("hops", "gate", "cancel", "limiter")
_err = Console(file=sys.stderr)
# In a file or a pipe nothing is narrow.
_out = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 150)


@contextmanager
def _progress(what: str, total: int) -> Iterator[tuple[Callable[[], None], Callable[[str], None]]]:
    """A bar on stderr: a function that advances it, and one that says something above it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_err) as bar:
        task = bar.add_task(what, total=total)
        yield (lambda: bar.advance(task)), (lambda text: bar.console.print(text))


def _hops(target: Target, args: argparse.Namespace) -> dict[str, Any]:
    rates = [int(rate) for rate in args.rates.split(",")]
    with _progress("hops", 2 * len(rates)) as (advance, _):
        rows = uvloop.run(hops.measure(target.url, rates, args.hop_seconds, progress=advance))
    _out.print(hops.table(rows))
    _out.print(f"goal at 100 requests/s: p50 <= {hops.GOAL_P50_MS:g} ms, p99 <= {hops.GOAL_P99_MS:g} ms")
    return {str(rate): {"floor": floor._asdict(), "pipeline": ours._asdict()} for rate, floor, ours in rows}


def _gate(targets: list[Target], args: argparse.Namespace) -> list[dict[str, object]]:
    with _progress("gate", gate.rounds(targets, args.repeats)) as (advance, _):
        rows = uvloop.run(gate.measure(targets, repeats=args.repeats, progress=advance))
    _out.print(gate.table(rows))
    _out.print(f"goal: >= {gate.GOAL_DECISIONS_PER_S:,} decisions/s per Redis core by admit")
    return rows


def _cancel(targets: list[Target]) -> list[dict[str, object]]:
    with _progress("cancel", cancel.rounds(targets)) as (advance, _):
        rows = uvloop.run(cancel.measure(targets, progress=advance))
    _out.print(cancel.table(rows))
    _out.print(f"goal: <= {cancel.GOAL_SERVER_US} us of the server each")
    return rows


def _limiter(target: Target, args: argparse.Namespace) -> dict[str, Any]:
    with _progress("limiter", limiter.rounds(args.repeats)) as (advance, say):
        rows = uvloop.run(
            limiter.measure(target, repeats=args.repeats, seconds=args.seconds, progress=advance, say=say)
        )
    crowd = uvloop.run(limiter.contended(target, seconds=4 * args.seconds))
    for table in limiter.tables(rows, crowd):
        _out.print(table)
    goals = [f"{callers} at a time >= {rate:,}/s, p99 <= {p99:g} ms" for callers, (rate, p99) in limiter.GOALS.items()]
    best = limiter.best_peer(rows)
    _out.print(
        f"goals: {'; '.join(goals)}; >= {limiter.GOAL_TIMES_BEST_PEER} times the best peer at 128 "
        f"({best:,.0f}/s in this run); {limiter.PROCESSES} processes p99 < {limiter.GOAL_CONTENDED_P99_MS:g} ms"
    )
    return {"server": target.name, "limiters": rows, "contended": crowd, "best_peer_at_128": best}


def main() -> int:
    """Measure, print tables, and with --json all figures and conditions as one object in the last line."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    parser.add_argument("bench", nargs="?", choices=(*BENCHES, "all"), default="all", help="which one (default all)")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of gate and limiter (default 5)")
    parser.add_argument("--seconds", type=float, default=0.5, help="limiter: per load and round (default 0.5)")
    parser.add_argument("--rates", default="20,100,200", help="hops: requests a second (default 20,100,200)")
    parser.add_argument("--hop-seconds", type=float, default=5, help="hops: per rate (default 5)")
    args = parser.parse_args()
    chosen = BENCHES if args.bench == "all" else (args.bench,)
    with servers() as targets:
        figures: dict[str, Any] = {"conditions": conditions() | {"servers": [target.name for target in targets]}}
        if "hops" in chosen:
            figures["hops"] = _hops(targets[-1], args)
        if "gate" in chosen:
            figures["gate"] = _gate(targets, args)
        if "cancel" in chosen:
            figures["cancel"] = _cancel(targets)
        if "limiter" in chosen:
            figures["limiter"] = _limiter(targets[0], args)
    _out.print(", ".join(f"{name} {value}" for name, value in figures["conditions"].items()))
    if args.json:
        sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
