"""The command `check`: is everything fit to work? Every finding is a line, with its cure."""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from collections.abc import Iterator

import msgspec

from pipeline.cli.allowance import differences
from pipeline.cli.limits import state
from pipeline.cli.output import mark, say
from pipeline.cli.reach import edge, key_of, provider
from pipeline.cli.target import Target, configured, resolve
from pipeline.config import Config, Deployment, Pool, masked
from pipeline.limits import explain, terms
from pipeline.store.finding import Finding
from pipeline.store.health import examine
from pipeline.store.overview import Overview, overview
from pipeline.store.views import opened
from tokenweir.errors import StoreUnavailable
from tokenweir.terms import Terms

# How long a premium call holds its slot, as a rule.
_CALL_S = 6.0
_FAILED, _UNREACHABLE = 1, 3


def run(args: argparse.Namespace) -> int:
    """Look at everything and say what was found. 0 = nothing failed, 1 = something did, 3 = Redis is unreachable.

    Raises:
        ConfigError: there is no configuration that anything could be checked against.
    """
    if args.show:
        return _show(configured(args), args.redis)
    return asyncio.run(_check(args, resolve(args)))


def _show(config: Config, url: str | None) -> int:
    if url:
        config = msgspec.structs.replace(config, redis=msgspec.structs.replace(config.redis, url=url))
    say(msgspec.json.format(msgspec.json.encode(masked(config)), indent=2).decode())
    return 0


async def _check(args: argparse.Namespace, target: Target) -> int:
    pools = ", ".join(target.config.pools)
    report = Report()
    report.add(
        Finding("ok", "configuration", f"parses; pools: {pools}; looking at {target.pool_name} on {target.named}")
    )
    reached = await _redis(args, target, report)
    for deployment in target.pool.deployments:
        key, finding = key_of(deployment)
        report.add(finding)
        if not args.offline:
            report.add(await provider(deployment, key))
    if target.pool.edge is None:
        report.add(Finding("ok", "edge", "none configured: simple requests wait like all others"))
    elif not args.offline:
        report.add(await edge(target.pool.edge))
    for deployment in target.pool.deployments:
        for line in explain(deployment):
            report.add(Finding("ok", "limit", line))
    if not reached:
        return _UNREACHABLE
    return _FAILED if report.failed else 0


class Report:
    """Says findings as they come, and remembers whether one failed."""

    def __init__(self) -> None:
        self.failed = False

    def add(self, finding: Finding) -> None:
        """Say `finding`."""
        self.failed = self.failed or finding.mark == "FAIL"
        cure = f" -> {finding.cure}" if finding.cure else ""
        say(f"{mark(finding.mark)}  {finding.about}: {' '.join(finding.text.split())}{cure}")


async def _redis(args: argparse.Namespace, target: Target, report: Report) -> bool:
    """Whether Redis was reached."""
    async with opened(target.url, target.keys) as views:
        try:
            for finding in await examine(views.connection):
                report.add(finding)
        except StoreUnavailable as error:
            if error.forbidden:
                report.add(Finding("FAIL", "redis", str(error), "look at the user and password in its URL"))
                return False
            cure = "start it, or name another with --redis or REDIS_URL; `embedded:` needs none"
            report.add(Finding("FAIL", "redis", str(error), cure))
            return False
        try:
            seen, limits = await overview(views.connection), await views.limits()
        except StoreUnavailable as error:
            report.add(Finding("warn", "pool", f"isn't looked at: {error}", "ask as a worker's or an operator's user"))
            return True
    if seen.closed:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seen.closed.since))
        cure = "tokenweir drain --open"
        report.add(
            Finding("warn", "drained", f"{seen.closed.by} drained the pool at {since}: it takes nothing in", cure)
        )
    workers, offered = seen.workers, seen.premium_slots
    if args.workers:
        workers, offered = args.workers, args.workers * target.pool.premium_concurrency
    report.add(_slots(target.pool, workers=workers, offered=offered))
    for deployment in target.pool.deployments:
        for finding in _standing(deployment, limits.deployments.get(deployment.name), seen):
            report.add(finding)
    return True


def _standing(deployment: Deployment, in_force: Terms | None, seen: Overview) -> Iterator[Finding]:
    """What of the deployment isn't as the file has it, or as it should be."""
    name = deployment.name
    if in_force is not None and (changes := differences(terms(deployment), in_force)):
        text = ", ".join(f"{what} {now} instead of {configured}" for what, configured, now in changes)
        cure = f"right if they were set live; `tokenweir limits reset {name}` puts the file's in force"
        yield Finding("warn", "limits", f"{name}: others than the file's are in force: {text}", cure)
    standing = seen.deployments.get(name)
    if standing is not None and standing.why:
        cure = f"mend the cause, then `tokenweir limits resume {name}`"
        yield Finding("warn", "pause", f"{name} is {state(standing)}", cure)
    elif standing is not None and standing.factor < 1:
        cure = f"set what the provider allows: `tokenweir limits set {name} rpm=...`"
        yield Finding("warn", "rate", f"{name} uses {standing.factor:.0%} of its rate after refusals", cure)


def _slots(pool: Pool, *, workers: int, offered: int) -> Finding:
    """Are there enough hands for what the budget allows?"""
    per_s = sum(deployment.rpm / deployment.window_s for deployment in pool.deployments if deployment.rpm)
    needed = math.ceil(per_s * _CALL_S)
    enough = math.ceil(needed / pool.premium_concurrency)
    text = f"{needed} premium calls at once use the whole budget ({per_s:.1f}/s, {_CALL_S:g} s each)"
    if not workers:
        return Finding("warn", "slots", f"{text}; no worker is running", f"tokenweir run --workers {max(1, enough)}")
    text += f"; {workers} worker{'s' if workers > 1 else ''} offer{'' if workers > 1 else 's'} {offered}"
    if offered < needed:
        return Finding("warn", "slots", text, f"run {enough} workers, or raise premium_concurrency")
    return Finding("ok", "slots", text)
