"""The demo: the users' story played twice against a simulated provider, and measured each time.

Forty users and a batch job on one provider account: first with twelve workers that each back off for themselves,
then with the real pipeline. Nothing shown is a constant; calls and 429s come from the provider's own ledger.

    story figures tally report chart   pure: what is asked, what is counted, what is said in the end
    baseline baseline_run              the first run: its worker processes, and who follows them
    installation pipeline_run          the second run: Redis and workers, and the load on them
    children watch view                processes, ledger and live view of both

This module is imported for `--help`, so it imports nothing heavy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

_SHORTEST_S, _LONGEST_S = 6.0, 12.0
_FEWEST, _MOST = 3, 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `tokenweir demo`."""
    parser.add_argument(
        "--minute-s",
        type=_minute_s,
        default=_SHORTEST_S,
        metavar="S",
        help="length of a provider minute, 6 to 12 s (default: 6); more for slow machines",
    )
    parser.add_argument(
        "--minutes", type=_minutes, default=5, metavar="N", help="provider minutes of each run, 3 to 60 (default: 5)"
    )
    parser.add_argument(
        "--seed", type=int, default=5, metavar="N", help="of the users' wishes (default: 5, 71 %% of the token limit)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="write a picture of calls and 429s per second")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object as the only line on stdout; everything else on stderr"
    )


def run(args: argparse.Namespace) -> int:
    """Play both runs; 0 when every promise was kept, 1 when one was broken, 130 after Ctrl-C."""
    from pipeline.demo.play import play

    return play(args)


def _minute_s(text: str) -> float:
    value = float(text)
    if not _SHORTEST_S <= value <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f"must be {_SHORTEST_S:g} to {_LONGEST_S:g} seconds, not {text}")
    return value


def _minutes(text: str) -> int:
    value = int(text)
    if not _FEWEST <= value <= _MOST:
        raise argparse.ArgumentTypeError(f"must be {_FEWEST} to {_MOST}, not {text}")
    return value
