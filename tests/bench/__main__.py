"""What the pipeline itself costs: three stage hops (classify, gate, premium) with the model call left out.

Two figures in one run, on one machine, so that their ratio means something: the same load through the
engine, and over a bare stream hop (XADD, XREADGROUP, XACK, XADD, XREAD), which is the floor. All else is real:
validation, token counts, the gate script with two limits, settlement, status, log lines, metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.embedded import ensure
from tests.bench.hops import Figures, bare, engine

# Agreed for 100 requests/s; a bench measures, so these are shown and not asserted in a test.
GOAL_P50_MS, GOAL_P99_MS = 5.0, 25.0


async def _measure(url: str, rates: list[int], seconds: float) -> list[tuple[int, Figures, Figures]]:
    rows = []
    for rate in rates:
        floor = await bare(url, rate=rate, seconds=seconds)
        rows.append((rate, floor, await engine(url, rate=rate, seconds=seconds)))
    return rows


def main() -> int:
    """Measure, print the table, and with --json the figures as one object in the last line."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    parser.add_argument("--rates", default="20,100,200", help="requests a second (default 20,100,200)")
    parser.add_argument("--seconds", type=float, default=10, help="per rate (default 10)")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    args = parser.parse_args()
    rates = [int(rate) for rate in args.rates.split(",")]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ensure(Path(folder) / "state") as server:
        rows = asyncio.run(_measure(server.url, rates, args.seconds))
    table = Table(title="Added by three stage hops, 1 kB prompts, one worker process")
    for column in ("requests/s", "floor p50 / p99 ms", "pipeline p50 / p99 ms", "answered", "worker CPU us/request"):
        table.add_column(column, justify="right")
    for rate, floor, ours in rows:
        table.add_row(
            str(rate),
            f"{floor.p50_ms:.1f} / {floor.p99_ms:.1f}",
            f"{ours.p50_ms:.1f} / {ours.p99_ms:.1f}",
            f"{ours.answered}/{ours.sent}",
            f"{ours.cpu_us:.0f}",
        )
    console = Console(file=sys.stdout)
    console.print(table)
    console.print(f"goal at 100 requests/s: p50 <= {GOAL_P50_MS:g} ms, p99 <= {GOAL_P99_MS:g} ms")
    if args.json:
        figures = {str(rate): {"floor": floor._asdict(), "pipeline": ours._asdict()} for rate, floor, ours in rows}
        sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
