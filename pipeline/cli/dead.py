"""The command `dead`: requests that get no further attempt, until an operator says otherwise."""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from pipeline.cli.output import remark, say, say_json, say_table
from pipeline.cli.parser import UsageError
from pipeline.cli.progress import board
from pipeline.cli.target import Target, resolve
from pipeline.store.letters import Letter, Letters
from pipeline.store.views import opened
from tokenweir.keys import GROUPS

_ENTRY = re.compile(r"\d{1,20}(-\d{1,20})?\Z")
# So many are done in one round trip.
_AT_ONCE = 100


def run(args: argparse.Namespace) -> int:
    """List, show, replay or drop dead letters.

    Raises:
        UsageError: no letters named or chosen where some are needed, or something that can't be one.
    """
    chosen = bool(args.id or args.stage or args.reason or args.older is not None)
    if args.action != "list" and not (args.letters or chosen or (args.action == "replay" and args.all)):
        more = ", or --all" if args.action == "replay" else ""
        raise UsageError(
            f"name the letters to {args.action}, or choose by --id, --stage, --reason or --older{more}; "
            "`tokenweir dead list` shows them"
        )
    if args.letters and chosen:
        raise UsageError("name letters, or choose them by options, not both")
    if args.all and args.action != "replay":
        raise UsageError("--all goes with `replay` only; `dead drop --older 0` drops all")
    for letter in args.letters:
        if not _ENTRY.match(letter):
            raise UsageError(f"{letter!r} is no entry id of a dead letter; `tokenweir dead list` shows them")
    return asyncio.run(_run(args, resolve(args)))


async def _run(args: argparse.Namespace, target: Target) -> int:
    async with opened(target.url, target.keys) as views:
        if args.letters:
            found, missing = await _named(views.letters, args.letters)
        else:
            found, missing = [letter async for letter in views.letters.all() if _meant(letter, args)], 0
        match args.action:
            case "list":
                _list(args, found)
            case "show":
                _show(args, found)
            case "replay":
                missing = await _replay(args, views.letters, found) or missing
            case _:
                await _drop(args, views.letters, found)
    return missing


def _meant(letter: Letter, args: argparse.Namespace) -> bool:
    return (
        (not args.id or letter.id in args.id)
        and (not args.stage or GROUPS.get(letter.stream) == args.stage)
        and (not args.reason or letter.reason == args.reason)
        and (args.older is None or letter.at_ms <= (time.time() - args.older) * 1000)
    )


def _list(args: argparse.Namespace, found: Sequence[Letter]) -> None:
    if args.json:
        for letter in found:
            say_json(_plain(letter))
    elif found:
        rows = [(each.letter, each.id, each.stream, each.reason, each.message) for each in found]
        say_table(("letter", "request", "stream", "reason", "message"), rows, whole=("letter",))
        reasons = Counter(letter.reason for letter in found)
        remark(f"{_count(len(found))}: {', '.join(f'{count:,} {reason}' for reason, count in reasons.most_common())}")
    else:
        remark("no dead letters")


def _show(args: argparse.Namespace, found: Sequence[Letter]) -> None:
    for letter in found:
        if args.json:
            say_json(_plain(letter))
            continue
        for name, value in _plain(letter).items():
            if name != "fields":
                say(f"{name:<11} {value}")
        for name, text in _fields(letter).items():
            say(f"  {name:<9} {text}")


async def _replay(args: argparse.Namespace, letters: Letters, found: Sequence[Letter]) -> int:
    """1 if a letter that was asked for, and not just swept up, can't be replayed."""
    able = [letter for letter in found if letter.target]
    for letter in found:
        if not letter.target:
            remark(f"{letter.letter}: nothing in it can be replayed; submit it again, then drop the letter")
    lives: list[tuple[Letter, int]] = []
    with board("replaying", len(able)) as shown:
        for first in range(0, len(able), _AT_ONCE):
            some = able[first : first + _AT_ONCE]
            for letter, number in await (letters.next_lives(some) if args.dry_run else letters.replay(some)):
                if number:
                    lives.append((letter, number))
                    if not args.json:
                        say(f"{letter.letter}  request {letter.id} -> {letter.target} as replay {number}")
                else:
                    shown.note(f"{letter.letter}: somebody else has just dealt with it")
            shown.advance(len(some))
    if args.json:
        done = [{"letter": each.letter, "id": each.id, "to": each.target, "replay": number} for each, number in lives]
        say_json({"dry_run": args.dry_run, "replayed": len(done), "letters": done})
    else:
        say(f"{'would replay' if args.dry_run else 'replayed'} {_count(len(lives))}")
    return 1 if args.letters and len(able) < len(found) else 0


async def _drop(args: argparse.Namespace, letters: Letters, found: Sequence[Letter]) -> None:
    names = [letter.letter for letter in found]
    dropped = 0
    with board("dropping", len(names)) as shown:
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            dropped += len(some) if args.dry_run else await letters.drop(some)
            shown.advance(len(some))
    if args.json:
        say_json({"dry_run": args.dry_run, "dropped": dropped})
    else:
        say(f"{'would drop' if args.dry_run else 'dropped'} {_count(dropped)}")


async def _named(letters: Letters, names: list[str]) -> tuple[list[Letter], int]:
    """The letters of these names, each once, and 1 if some aren't there."""
    found, missing = [], 0
    for name in dict.fromkeys(names):
        letter = await letters.get(name)
        if letter is None:
            remark(f"{name}: no such dead letter")
            missing = 1
        else:
            found.append(letter)
    return found, missing


def _plain(letter: Letter) -> dict[str, object]:
    plain: dict[str, object] = msgspec.structs.asdict(letter)
    plain["at"] = datetime.fromtimestamp(letter.at_ms / 1000, UTC).isoformat(timespec="seconds")
    plain["fields"] = _fields(letter)
    return plain


def _fields(letter: Letter) -> dict[str, str]:
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in letter.fields.items()}


def _count(letters: int) -> str:
    return "1 letter" if letters == 1 else f"{letters:,} letters"
