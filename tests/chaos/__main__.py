"""`python -m tests.chaos`: workers are killed, replies of Redis cut, Redis restarted, stopped and made to forget.

The last lines are one JSON object a server; the exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
from functools import partial

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tests.chaos.run import play
from tests.chaos.verdict import Verdict
from tests.support import KINDS, server_binary


def main() -> int:
    """Play on each server, one after the other."""
    parser = argparse.ArgumentParser(prog="make chaos ARGS=...", description=__doc__)
    parser.add_argument("--servers", nargs="+", choices=KINDS, default=["valkey", "redis"], help="one after the other")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--kills", type=int, default=12, help="kill -9 of workers")
    parser.add_argument("--cuts", type=int, default=120, help="replies of Redis that are cut")
    parser.add_argument("--seed", type=int, default=1, help="of the requests, and of what strikes when")
    args = parser.parse_args()
    if missing := [kind for kind in args.servers if not server_binary(kind)]:
        parser.error(f"not on this machine: {', '.join(missing)}")
    verdicts = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as shown:
        for kind in args.servers:
            bar = shown.add_task(f"chaos on {kind}", total=args.requests)
            verdicts.append(
                play(
                    kind,
                    requests=args.requests,
                    kills=args.kills,
                    cuts=args.cuts,
                    seed=args.seed,
                    progress=partial(_show, shown, bar),
                )
            )
    return report(verdicts)


def _show(shown: Progress, bar: TaskID, count: int) -> None:
    shown.update(bar, completed=count)


def report(verdicts: list[Verdict]) -> int:
    """Print the verdicts; the exit code that they come to."""
    for verdict in verdicts:
        for promise, count in verdict.broken.items():
            print(f"BROKEN on {verdict.server}: {promise} {count}")
        for story in verdict.stories:
            print(story)
    for verdict in verdicts:
        print(msgspec.json.encode(msgspec.structs.replace(verdict, stories=[])).decode())
    return int(any(verdict.broken for verdict in verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
