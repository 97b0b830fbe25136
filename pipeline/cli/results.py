"""The command `results`: JSON lines on stdout, or into a file that a later call goes on with."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
import socket
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing

import msgspec

from pipeline.cli.jsonl import Appended
from pipeline.cli.output import remark
from pipeline.cli.parser import UsageError
from pipeline.cli.target import Target, resolve
from pipeline.store.answers import Answer, Answers
from pipeline.store.views import opened
from tokenweir.wire import result_from_fields

_BEGINNING = "0-0"
_PAGE = 500
_BLOCK_MS = 1000
# Whoever took a result writes and acknowledges it at once; after this long it has ended without doing so.
_LOST_MS = 10_000
_ENTRY = re.compile(r"\d{1,20}(-\d{1,20})?\Z")


def run(args: argparse.Namespace) -> int:
    """Write results as they come, each with its entry id, until `--count`, the end, or Ctrl-C.

    Raises:
        UsageError: options that contradict each other.
    """
    if args.group and args.after:
        raise UsageError("--after doesn't go with --group: the group remembers where it is")
    if args.after and args.after != "new" and not _ENTRY.match(args.after):
        raise UsageError(f"--after takes an entry id such as 1753360000000-0, or `new`, and not {args.after!r}")
    return asyncio.run(_results(args, resolve(args)))


async def _results(args: argparse.Namespace, target: Target) -> int:
    with ExitStack() as stack:
        out = stack.enter_context(Appended(args.out)) if args.out else None
        async with opened(target.url, target.keys) as views:
            start = await _start(args, views.answers, out)
            batches = _shared(args, views.answers) if args.group else _alone(args, views.answers, start)
            async with aclosing(batches):
                async for batch in batches:
                    _write(batch, out)
    return 0


async def _start(args: argparse.Namespace, answers: Answers, out: Appended | None) -> str:
    """The entry to begin behind: `--after`, else the file's last one, else the beginning."""
    if args.after:
        return await answers.last() if args.after == "new" else str(args.after)
    last = out.last_entry if out else ""
    if not last:
        return _BEGINNING
    if not args.group and await answers.trimmed_behind(last):
        remark("results were trimmed before they were read: some may be missing in the file")
    return last


async def _alone(args: argparse.Namespace, answers: Answers, start: str) -> AsyncGenerator[list[Answer], None]:
    """All results behind `start`, in batches that are written before the next one is read."""
    left = args.count or sys.maxsize
    block_ms = None
    while left:
        batch = await answers.after(start, count=min(left, _PAGE), block_ms=block_ms)
        if batch:
            start = batch[-1].entry
            left -= len(batch)
            yield batch
        elif not args.follow:
            return
        block_ms = None if batch or not args.follow else _BLOCK_MS


async def _shared(args: argparse.Namespace, answers: Answers) -> AsyncGenerator[list[Answer], None]:
    """This reader's share of a group's results; each batch is acknowledged once it has been written."""
    group, left = args.group, args.count or sys.maxsize
    consumer = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
    await answers.join(group)
    try:
        while left:
            batch = await answers.retake(group, consumer, idle_ms=_LOST_MS, count=min(left, _PAGE))
            if not batch:
                batch = await answers.take(
                    group, consumer, count=min(left, _PAGE), block_ms=_BLOCK_MS if args.follow else None
                )
            if batch:
                left -= len(batch)
                yield batch
                await answers.acknowledge(group, [answer.entry for answer in batch])
            elif not args.follow:
                return
    finally:
        await answers.leave(group, consumer)


def _write(batch: Sequence[Answer], out: Appended | None) -> None:
    lines = []
    for answer in batch:
        try:
            result = result_from_fields(answer.fields)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            remark(f"{answer.entry} on responses isn't a result, left out: {error}")
            continue
        lines.append(msgspec.json.encode({"entry": answer.entry, **msgspec.structs.asdict(result)}) + b"\n")
    if out is not None:
        out.append(lines)
        return
    sys.stdout.buffer.writelines(lines)
    sys.stdout.buffer.flush()
