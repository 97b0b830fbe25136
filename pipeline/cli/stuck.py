"""The commands `stuck` and `replay`: entries in hand whose owner gives no sign of life."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from pipeline.cli.output import remark, say, say_json, say_table, seconds
from pipeline.cli.parser import UsageError
from pipeline.cli.target import Target, resolve
from pipeline.store.views import Pending, Views, opened
from tokenweir.keys import GROUPS

# Beyond the lease, so that the next look for abandoned entries takes it whatever the clocks say.
_BEYOND_S = 1.0


def run_stuck(args: argparse.Namespace) -> int:
    """List entries that have been without a sign of life for a lease, or for `--min-idle`."""
    return asyncio.run(_stuck(args, resolve(args)))


def run_replay(args: argparse.Namespace) -> int:
    """Put stuck entries back to work; a live worker takes them at its next look, within a quarter lease.

    Raises:
        UsageError: nothing says which entries are meant.
    """
    if not (args.id or args.entry or args.stage or args.owner or args.all or args.min_idle is not None):
        raise UsageError(
            "say which entries: --id, --entry, --stage, --owner, --min-idle or --all; `tokenweir stuck` lists them"
        )
    return asyncio.run(_replay(args, resolve(args)))


async def _stuck(args: argparse.Namespace, target: Target) -> int:
    least_s = _least_s(args, target)
    async with opened(target.url, target.keys) as views:
        found = await views.pending(_streams(args.stage), min_idle_s=least_s)
        held = len(found) if found else await _in_hand(views, args.stage)
    if args.json:
        for entry in found:
            say_json(entry)
    elif found:
        _show(found)
    else:
        more = f"; {held:,} in hand, --min-idle 0 lists them" if held else ""
        remark(f"nothing has been without a sign of life for {least_s:g} s{more}")
    return 0


async def _replay(args: argparse.Namespace, target: Target) -> int:
    least_s = _least_s(args, target)
    async with opened(target.url, target.keys) as views:
        chosen = [
            entry for entry in await views.pending(_streams(args.stage), min_idle_s=least_s) if _meant(entry, args)
        ]
        if args.dry_run:
            if chosen:
                _show(chosen)
            say(f"would replay {_entries(len(chosen))}")
            return 0
        released = await views.release(chosen, idle_s=target.pool.lease_s + _BEYOND_S)
    missed = len(chosen) - len(released)
    say(f"replayed {_entries(len(released))}" + (f"; {missed:,} had just been taken over or ended" if missed else ""))
    if not chosen:
        remark(
            f"none of that kind has been without a sign of life for {least_s:g} s; see `tokenweir stuck --min-idle 0`"
        )
    # Named entries that aren't there are a failed request; a broad sweep that finds nothing isn't.
    return 1 if (args.id or args.entry) and not released else 0


def _meant(entry: Pending, args: argparse.Namespace) -> bool:
    return (
        (not args.id or entry.request in args.id)
        and (not args.entry or entry.entry in args.entry)
        and (not args.owner or entry.owner == args.owner)
    )


async def _in_hand(views: Views, stage: str | None) -> int:
    return len(await views.pending(_streams(stage), min_idle_s=0))


def _streams(stage: str | None) -> list[str]:
    return [stream for stream, group in GROUPS.items() if stage in (None, group)]


def _least_s(args: argparse.Namespace, target: Target) -> float:
    return float(target.pool.lease_s if args.min_idle is None else args.min_idle)


def _show(entries: Sequence[Pending]) -> None:
    rows = [
        (entry.stream, entry.entry, entry.request or "-", entry.owner, seconds(entry.idle_s), entry.deliveries)
        for entry in entries
    ]
    names = ("stream", "entry", "request", "owner", "idle", "deliveries")
    say_table(names, rows, numbers=("idle", "deliveries"), whole=("entry",))


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"
