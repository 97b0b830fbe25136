"""The command `cancel`: end requests that nobody wants any more."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from pipeline.cli.output import remark, say, say_json
from pipeline.cli.parser import UsageError
from pipeline.cli.status import summary
from pipeline.cli.target import Target, resolve
from tokenweir.client import Client
from tokenweir.keys import valid_id
from tokenweir.wire import Result

_AT_ONCE: Final = 1000


def run(args: argparse.Namespace) -> int:
    """Cancel requests, and say what each has come to; 1 when one isn't known, or had another result already.

    Raises:
        UsageError: something that can't be an id; nothing was cancelled, unless they come from stdin.
    """
    if args.ids == ["-"]:
        given: Iterator[str] = (line.strip() for line in sys.stdin if line.strip())
    else:
        given = iter([_checked(each) for each in args.ids])
    return asyncio.run(_cancel(args, given, resolve(args)))


async def _cancel(args: argparse.Namespace, given: Iterator[str], target: Target) -> int:
    unknown = others = 0
    async with Client(target.url, pool=target.pool_name, prefix=target.config.redis.prefix) as client:
        while ids := [_checked(each) for each in islice(given, _AT_ONCE)]:
            results = await client.cancel_many(ids)
            _show(args, ids, results)
            unknown += results.count(None)
            others += _count(results)
    if unknown:
        remark(f"not known in pool {target.pool_name}: {unknown:,}; never submitted, not yet read, or long over")
    if others:
        remark(f"ended otherwise before, which stands: {others:,}")
    return 1 if unknown or others else 0


def _count(results: Iterable[Result | None]) -> int:
    return sum(result is not None and result.status != "cancelled" for result in results)


def _show(args: argparse.Namespace, ids: Sequence[str], results: Sequence[Result | None]) -> None:
    for request_id, result in zip(ids, results, strict=True):
        if args.json:
            say_json(result or {"id": request_id, "status": "unknown"})
        elif result is not None:
            say(f"{request_id}  {'cancelled' if result.status == 'cancelled' else summary(result)}")


def _checked(text: str) -> str:
    if not valid_id(text):
        raise UsageError(f"{text!r} can't be a request's id: 1 to 128 visible ASCII characters; see `tokenweir status`")
    return text
