"""The command `drain`: the pool takes nothing in any more, and what it has accepted is finished."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import math
import socket
import time

from pipeline.cli.output import remark, say, say_json, seconds
from pipeline.cli.progress import Board, board
from pipeline.cli.target import Target, resolve
from pipeline.store.overview import overview
from pipeline.store.views import Count, Views, opened
from tokenweir.errors import StoreUnavailable

_LOOK_S, _SAY_EVERY_S, _PATIENCE_S = 0.25, 10.0, 30.0
_FAILED = 1


def run(args: argparse.Namespace) -> int:
    """Drain the pool, or open it. 1 = not all was finished within `--timeout`, or somebody opened it meanwhile."""
    return asyncio.run(_run(args, resolve(args)))


async def _run(args: argparse.Namespace, target: Target) -> int:
    async with opened(target.url, target.keys) as views:
        if args.open:
            was_closed = await views.open()
            if args.json:
                say_json({"pool": target.pool_name, "drained": False, "changed": was_closed})
            else:
                text = "takes requests in again" if was_closed else "was open: it takes requests in"
                say(f"pool {target.pool_name} {text}")
            return 0
        return await _drain(args, target, views)


async def _drain(args: argparse.Namespace, target: Target, views: Views) -> int:
    began = time.monotonic()
    if not await views.close(_who()):
        remark(f"pool {target.pool_name} was drained already")
    first = await views.count()
    remark(
        f"pool {target.pool_name} takes nothing in any more, {_requests(first.total)} to finish; Ctrl-C leaves it so, "
        "`tokenweir drain --open` opens it"
    )
    until = began + args.timeout if args.timeout else math.inf
    with board("finishing", first.total) as shown:
        last = await _Watch(views, shown, first).until_empty(until)
    took_s = time.monotonic() - began
    if args.json:
        say_json(
            {"pool": target.pool_name, "drained": last.closed, "seconds": round(took_s, 3), **_figures(first, last)}
        )
    else:
        _report(target.pool_name, first, last, took_s)
    return 0 if last.closed and not last.total else _FAILED


class _Watch:
    """Looks at what is left until nothing is, and says so now and then."""

    def __init__(self, views: Views, shown: Board, first: Count) -> None:
        self._views = views
        self._shown = shown
        self._first = first
        self._said_at = -math.inf
        self._done = 0

    async def until_empty(self, until: float) -> Count:
        """The last count: all finished, the time (monotonic) over, or the pool opened by somebody."""
        last, served_at = self._first, time.monotonic()
        while True:
            try:
                last = await self._views.count()
                await self._show(last)
                served_at = time.monotonic()
            except StoreUnavailable as error:
                if time.monotonic() - served_at >= _PATIENCE_S:
                    raise
                self._shown.wait(f"Redis: {error}")
            else:
                if not last.total or not last.closed or time.monotonic() >= until:
                    return last
            await asyncio.sleep(_LOOK_S)

    async def _show(self, now: Count) -> None:
        done = max(0, self._first.total - now.total)
        self._shown.wait(_where(now) or "finished")
        if done > self._done:
            self._shown.advance(done - self._done)
            self._done = done
        if now.total and time.monotonic() - self._said_at >= _SAY_EVERY_S:
            self._said_at = time.monotonic()
            workers = (await overview(self._views.connection)).workers
            nobody = "" if workers else "; no worker is running, so nothing moves: `tokenweir run`"
            self._shown.note(f"{_requests(now.total)} left: {_where(now)}{nobody}")


def _report(pool: str, first: Count, last: Count, took_s: float) -> None:
    figures = _figures(first, last)
    if not last.closed:
        say(f"pool {pool} was opened meanwhile, by somebody else or by a fail-over that lost the mark")
    elif last.total:
        say(f"pool {pool} isn't empty after {seconds(took_s)}: {_where(last)}; it goes on finishing, and stays drained")
    else:
        say(f"pool {pool} is drained and empty after {seconds(took_s)}")
    say(f"{figures['results']:,} results meanwhile, {figures['dead']:,} of them dead letters")
    if figures["came_in"]:
        say(
            f"{figures['came_in']:,} entries came in meanwhile by XADD or replay, which no script refuses; stop their "
            "producers, or switch off their user: docs/operating.md"
        )


def _figures(first: Count, last: Count) -> dict[str, int]:
    """What happened between two counts, and what is left."""
    return {
        "results": last.answered - first.answered,
        "dead": last.died - first.died,
        "came_in": last.came_in - first.came_in,
        "left": last.total,
    }


def _where(count: Count) -> str:
    return ", ".join(f"{length:,} {name}" for name, length in count.held.items() if length)


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def _who() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        name = "somebody"
    return f"{name}@{socket.gethostname()}"
