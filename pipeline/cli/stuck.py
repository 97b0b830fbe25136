"""The commands `stuck` and `replay`: entries in hand whose owner gives no sign of life."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from pipeline.cli.output import remark, say, say_json, say_table, seconds
from pipeline.cli.parser import UsageError
from pipeline.cli.progress import board
from pipeline.cli.target import Target, resolve
from pipeline.store.views import Pending, Views, opened
from tokenweir.keys import GROUPS

# Beyond the lease, so that the next look for abandoned entries takes it whatever the clocks say.
_BEYOND_S = 1.0
# Of more entries people want to know how many there are, where and whose.
_MOST_LISTED = 40
# One script call holds the server up for no more entries than these.
_AT_ONCE = 250


def run_stuck(args: argparse.Namespace) -> int:
    """List entries that have been without a sign of life for a lease, or for `--min-idle`."""
    return asyncio.run(_stuck(args, resolve(args)))


def run_replay(args: argparse.Namespace) -> int:
    """Put stuck entries back to work; a live worker takes them at its next look, within a quarter lease.

    Raises:
        UsageError: nothing says which entries are meant.
    """
    chosen = args.id or args.entry or args.stage or args.owner or args.deliveries or args.min_idle is not None
    if not chosen and not args.all:
        raise UsageError(
            "say which entries: --id, --entry, --stage, --owner, --deliveries, --min-idle or --all; "
            "`tokenweir stuck` lists them"
        )
    return asyncio.run(_replay(args, resolve(args)))


async def _stuck(args: argparse.Namespace, target: Target) -> int:
    least_s = _least_s(args, target)
    async with opened(target.url, target.keys) as views:
        found = await _chosen(args, views, least_s)
        held = len(found) if found else len(await views.pending(_streams(args.stage), min_idle_s=0))
    if args.json:
        for entry in found:
            say_json(entry)
    elif found:
        _show(found)
    else:
        more = f"; {held:,} in hand, --min-idle 0 lists them" if held else ""
        remark(f"nothing of that kind has been without a sign of life for {least_s:g} s{more}")
    return 0


async def _replay(args: argparse.Namespace, target: Target) -> int:
    least_s = _least_s(args, target)
    async with opened(target.url, target.keys) as views:
        chosen = await _chosen(args, views, least_s)
        released = [] if args.dry_run else await _release(views, chosen, idle_s=target.pool.lease_s + _BEYOND_S)
    done = chosen if args.dry_run else released
    missed = len(chosen) - len(done)
    if args.json:
        say_json({"dry_run": args.dry_run, "replayed": len(done), "missed": missed, "entries": done})
    elif args.dry_run:
        if chosen:
            _show(chosen)
        say(f"would replay {_entries(len(chosen))}")
    else:
        more = f"; {missed:,} had just been taken over or ended" if missed else ""
        say(f"replayed {_entries(len(released))}{more}")
    if not chosen and not args.dry_run:
        remark(
            f"none of that kind has been without a sign of life for {least_s:g} s; see `tokenweir stuck --min-idle 0`"
        )
    # Named entries that aren't there are a failed request; a broad sweep that finds nothing isn't.
    return 1 if (args.id or args.entry) and not done else 0


async def _release(views: Views, chosen: Sequence[Pending], *, idle_s: float) -> list[Pending]:
    """Let them go, some at a time; returns those that were."""
    released: list[Pending] = []
    with board("replaying", len(chosen)) as shown:
        for first in range(0, len(chosen), _AT_ONCE):
            some = chosen[first : first + _AT_ONCE]
            released += await views.release(some, idle_s=idle_s)
            shown.advance(len(some))
    return released


async def _chosen(args: argparse.Namespace, views: Views, least_s: float) -> list[Pending]:
    """The entries that all of the options mean."""
    return [
        entry
        for entry in await views.pending(_streams(args.stage), min_idle_s=least_s)
        if (not args.id or entry.request in args.id)
        and (not args.entry or entry.entry in args.entry)
        and (not args.owner or entry.owner == args.owner)
        and (not args.deliveries or entry.deliveries >= args.deliveries)
    ]


def _streams(stage: str | None) -> list[str]:
    return [stream for stream, group in GROUPS.items() if stage in (None, group)]


def _least_s(args: argparse.Namespace, target: Target) -> float:
    return float(target.pool.lease_s if args.min_idle is None else args.min_idle)


def _show(entries: Sequence[Pending]) -> None:
    """Each entry, or of many how many there are by stream and owner."""
    if len(entries) > _MOST_LISTED:
        _sum_up(entries)
        return
    rows = [
        (entry.stream, entry.entry, entry.request or "-", entry.owner, seconds(entry.idle_s), entry.deliveries)
        for entry in entries
    ]
    names = ("stream", "entry", "request", "owner", "idle", "deliveries")
    say_table(names, rows, numbers=("idle", "deliveries"), whole=("entry",))


def _sum_up(entries: Sequence[Pending]) -> None:
    groups: dict[tuple[str, str], list[Pending]] = {}
    for entry in entries:
        groups.setdefault((entry.stream, entry.owner), []).append(entry)
    rows = [
        (
            stream,
            owner,
            len(held),
            f"{seconds(min(each.idle_s for each in held))} - {seconds(max(each.idle_s for each in held))}",
            max(each.deliveries for each in held),
        )
        for (stream, owner), held in groups.items()
    ]
    names = ("stream", "owner", "entries", "idle", "deliveries")
    say_table(names, rows, numbers=("entries", "idle", "deliveries"))
    remark(f"{_entries(len(entries))} in all; --json lists each, --stage, --owner and --deliveries choose")


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"
