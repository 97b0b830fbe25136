"""The command `limits`: what the gate counts with, as it stands in Redis."""

from __future__ import annotations

import argparse
import asyncio

from pipeline.cli.output import remark, say, say_json, say_table
from pipeline.cli.target import Target, resolve
from pipeline.store.views import LimitsView, opened


def run(args: argparse.Namespace) -> int:
    """Show the limits in force and their version."""
    return asyncio.run(_show(args, resolve(args)))


async def _show(args: argparse.Namespace, target: Target) -> int:
    async with opened(target.url, target.keys) as views:
        limits = await views.limits()
    if args.json:
        say_json(limits)
    elif limits.deployments:
        _table(target.pool_name, limits)
    else:
        remark(f"pool {target.pool_name} has no limits in Redis yet: the first worker puts the configured ones there")
    return 0


def _table(pool: str, limits: LimitsView) -> None:
    say(f"pool {pool}, version {limits.version}\n")
    rows = [
        (
            name,
            limit.name,
            limit.limit,
            f"{limit.window_us / 1e6:g} s",
            f"{limit.capacity:,.0f}",
            f"{limit.rate * 1e6:,.2f}/s",
            f"{limit.expected_use:.1%}",
            terms.settlement,
        )
        for name, terms in limits.deployments.items()
        for limit in terms.limits
    ]
    names = ("deployment", "limit", "allowed", "per", "burst", "refill", "uses", "settlement")
    say_table(names, rows, numbers=("allowed", "per", "burst", "refill", "uses"))
