"""The command `status`: one request, or the pool at a glance."""

from __future__ import annotations

import argparse
import asyncio
import time

import msgspec

from pipeline.cli.limits import state
from pipeline.cli.output import remark, say, say_json, say_table, seconds
from pipeline.cli.target import Target, resolve
from pipeline.store.overview import Overview, overview
from pipeline.store.views import opened
from tokenweir.client import Client
from tokenweir.wire import Result, Status


def run(args: argparse.Namespace) -> int:
    """Show a request's state, or the pool's queues, budgets and workers. 1 when there is no such request."""
    target = resolve(args)
    return asyncio.run(_request(args, target) if args.id else _pool(args, target))


async def _pool(args: argparse.Namespace, target: Target) -> int:
    async with opened(target.url, target.keys) as views:
        seen = await overview(views.connection)
    if args.json:
        say_json({"pool": target.pool_name, **msgspec.to_builtins(seen)})
    else:
        _show_pool(target, seen)
    return 0


def _show_pool(target: Target, seen: Overview) -> None:
    say(f"pool {target.pool_name} at {target.named}\n")
    if seen.closed:
        say(f"DRAINED by {seen.closed.by} {_ago(seen.closed.since)}: takes nothing in until `tokenweir drain --open`\n")
    # Consumers of empty streams aren't counted in an overview.
    queues = [
        (queue.stream, queue.waiting, queue.pending, queue.consumers or "-", _age(queue.oldest_s))
        for queue in seen.queues
    ]
    names = ("stream", "waiting", "pending", "consumers", "oldest")
    say_table(names, queues, numbers=names[1:])
    waiting = ", ".join(f"{count:,} {name}" for name, count in seen.backlog.items())
    say(f"\nbacklog   {waiting}; {seen.due_later:,} due later")
    if seen.workers:
        edge = f"{seen.edge_slots:,} edge" if seen.edge_alive else "no edge"
        say(f"workers   {seen.workers:,}, offering slots for {seen.premium_slots:,} premium and {edge} calls")
    else:
        say("workers   none: `tokenweir run` starts one")
    say(f"responses {seen.responses:,} kept; {seen.dead:,} dead letters\n")
    if seen.budgets:
        _show_budgets(seen)
    else:
        say("budgets   none yet: the first worker puts the configured limits in place")


def _show_budgets(seen: Overview) -> None:
    rows = [
        (
            level.deployment,
            level.limit,
            f"{level.level:,.0f} of {level.capacity:,.0f}",
            f"{level.used:,} of {level.allowed:,}",
            f"{level.used / level.allowed:.0%}",
        )
        for level in seen.budgets
    ]
    names = ("budget", "limit", "bucket", "window", "used")
    say_table(names, rows, numbers=names[2:])
    say()
    for deployment, standing in seen.deployments.items():
        narrowed = f", rate narrowed to {standing.factor:.0%} after refusals" if standing.factor < 1 else ""
        refunds = ", unused tokens are taken back" if standing.refunds else ""
        say(f"{deployment} is {state(standing)}; {standing.in_flight:,} in flight{narrowed}{refunds}")


async def _request(args: argparse.Namespace, target: Target) -> int:
    async with Client(target.url, pool=target.pool_name, prefix=target.config.redis.prefix) as client:
        status = await client.status(args.id)
    if status is None:
        remark(f"no request {args.id!r} in pool {target.pool_name}; results are kept for {_kept(target)} after the end")
        return 1
    if args.json:
        say_json(status)
    else:
        _show_request(status)
    return 0


def _show_request(status: Status) -> None:
    place = f" in {status.stage}" if status.stage and status.state != "done" else ""
    route = f", route {status.route}" if status.route else ""
    lives = f", replay {status.replay}" if status.replay else ""
    say(f"{status.id}  {status.state}{place}{route}, attempt {status.attempt}{lives}")
    if status.position:
        say(f"position {status.position:,}, about {seconds(status.eta_s)} to go")
    if status.result is not None:
        say(summary(status.result))


def summary(result: Result) -> str:
    """How a request ended, in a line."""
    if not result.ok:
        return f"{result.status}: {result.code}"
    tokens = f"{result.usage.total_tokens:,} tokens"
    return (
        f"{result.status} from {result.model}, {tokens}: waited {result.waited_ms:,.0f} ms, "
        f"first token after {result.ttft_ms:,.0f} ms, whole answer after {result.total_ms:,.0f} ms"
    )


def _ago(at: float) -> str:
    return f"{seconds(max(0.0, time.time() - at))} ago"


def _age(oldest_s: float) -> str:
    return seconds(oldest_s) if oldest_s else "-"


def _kept(target: Target) -> str:
    return seconds(target.pool.status_ttl_s)
