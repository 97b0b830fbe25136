"""The command `dead`: requests that get no further attempt, until an operator says otherwise."""

from __future__ import annotations

import argparse
import asyncio
import re
from datetime import UTC, datetime

import msgspec

from pipeline.cli.output import remark, say, say_json, say_table
from pipeline.cli.parser import UsageError
from pipeline.cli.target import Target, resolve
from pipeline.store.letters import Letter, Letters
from pipeline.store.views import opened

_ENTRY = re.compile(r"\d{1,20}(-\d{1,20})?\Z")


def run(args: argparse.Namespace) -> int:
    """List, show, replay or drop dead letters.

    Raises:
        UsageError: no letters named where some are needed, or something that can't be one.
    """
    if args.action != "list" and not args.letters and not (args.action == "replay" and args.all):
        more = ", or --all" if args.action == "replay" else ""
        raise UsageError(f"name the letters to {args.action}{more}; `tokenweir dead list` shows them")
    if args.all and args.action != "replay":
        raise UsageError("--all goes with `replay` only")
    for letter in args.letters:
        if not _ENTRY.match(letter):
            raise UsageError(f"{letter!r} is no entry id of a dead letter; `tokenweir dead list` shows them")
    return asyncio.run(_ACTIONS[args.action](args, resolve(args)))


async def _list(args: argparse.Namespace, target: Target) -> int:
    async with opened(target.url, target.keys) as views:
        found = [letter async for letter in views.letters.all()]
    if args.json:
        for letter in found:
            say_json(_plain(letter))
    elif found:
        rows = [(each.letter, each.id, each.stream, each.reason, each.message) for each in found]
        say_table(("letter", "request", "stream", "reason", "message"), rows, whole=("letter",))
    else:
        remark("no dead letters")
    return 0


async def _show(args: argparse.Namespace, target: Target) -> int:
    async with opened(target.url, target.keys) as views:
        found, missing = await _named(views.letters, args.letters)
    for letter in found:
        if args.json:
            say_json(_plain(letter))
            continue
        for name, value in _plain(letter).items():
            if name != "fields":
                say(f"{name:<11} {value}")
        for name, text in _fields(letter).items():
            say(f"  {name:<9} {text}")
    return missing


async def _replay(args: argparse.Namespace, target: Target) -> int:
    async with opened(target.url, target.keys) as views:
        letters = views.letters
        if args.all:
            found, failed = [letter async for letter in letters.all()], 0
        else:
            found, failed = await _named(letters, args.letters)
        replayed = 0
        for letter in found:
            if not letter.target:
                remark(f"{letter.letter}: nothing in it can be replayed; submit it again, then drop the letter")
                failed = failed if args.all else 1
                continue
            number = await letters.next_life(letter)
            if not args.dry_run and not await letters.replay(letter):
                remark(f"{letter.letter}: somebody else has just dealt with it")
                continue
            say(f"{letter.letter}  request {letter.id} -> {letter.target} as replay {number}")
            replayed += 1
    say(f"{'would replay' if args.dry_run else 'replayed'} {_count(replayed)}")
    return failed


async def _drop(args: argparse.Namespace, target: Target) -> int:
    async with opened(target.url, target.keys) as views:
        found, missing = await _named(views.letters, args.letters)
        names = [letter.letter for letter in found]
        dropped = len(names) if args.dry_run else await views.letters.drop(names)
    say(f"{'would drop' if args.dry_run else 'dropped'} {_count(dropped)}")
    return missing


_ACTIONS = {"list": _list, "show": _show, "replay": _replay, "drop": _drop}


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
