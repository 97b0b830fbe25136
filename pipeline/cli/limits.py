"""The command `limits`: what the gate counts with, as it stands in Redis; changed live, for all workers at once."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from pipeline.cli.allowance import changed, chosen, differences, wanted
from pipeline.cli.output import remark, say, say_json, say_table, seconds
from pipeline.cli.parser import UsageError
from pipeline.cli.target import Target, resolve
from pipeline.limits import terms as configured_terms
from pipeline.store.overview import Level, Standing, budgets
from pipeline.store.views import LimitsView, Views, opened
from tokenweir.terms import Terms

_FAILED = 1


def run(args: argparse.Namespace) -> int:
    """Show the limits in force, or change them, or end pauses. 1 = there are no limits yet.

    Raises:
        UsageError: what was typed names something that there isn't, or that can't be.
    """
    asked = wanted(args.words)
    if asked.values and args.action != "set":
        raise UsageError(f"`limits {args.action}` takes no values; `tokenweir limits set` changes them")
    if args.action == "set" and not asked.values:
        raise UsageError("nothing to set; e.g. `tokenweir limits set primary rpm=400 tpm=none`")
    if args.action == "show" and asked.deployment:
        raise UsageError("`limits show` shows all deployments of a pool")
    return asyncio.run(_run(args, resolve(args)))


async def _run(args: argparse.Namespace, target: Target) -> int:
    async with opened(target.url, target.keys) as views:
        limits = await views.limits()
        if args.action == "show":
            return await _show(args, target, views, limits)
        if not limits.deployments:
            remark(_nothing(target.pool_name))
            return _FAILED
        if args.action == "resume":
            return await _resume(args, views, limits)
        return await _put(args, views, limits, _new_terms(args, target, limits))


async def _show(args: argparse.Namespace, target: Target, views: Views, limits: LimitsView) -> int:
    levels, standings = await budgets(views.connection, list(limits.deployments))
    if args.json:
        standing = {
            name: {**msgspec.to_builtins(one), "settlement": in_force(limits.deployments[name], one)}
            for name, one in standings.items()
        }
        say_json({**msgspec.to_builtins(limits), "budgets": levels, "standing": standing})
    elif limits.deployments:
        say(f"pool {target.pool_name}, version {limits.version}\n")
        _table(limits, levels)
        say()
        for name, one in standings.items():
            say(describe(name, limits.deployments[name], one))
        for level in levels:
            stated = _stated_lower(limits.deployments[level.deployment], level)
            if stated:
                say(stated)
    else:
        remark(_nothing(target.pool_name))
    return 0


def _table(limits: LimitsView, levels: list[Level]) -> None:
    now = {(level.deployment, level.limit): level for level in levels}
    rows = []
    for name, terms in limits.deployments.items():
        for limit in terms.limits:
            level = now.get((name, limit.name))
            rows.append(
                (
                    name,
                    limit.name,
                    limit.limit,
                    f"{limit.window_us / 1e6:g} s",
                    f"{level.used:,}" if level else "-",
                    f"{level.level:,.0f}" if level and limit.paced else "-",
                    f"{limit.capacity:,.0f}" if limit.paced else "-",
                    f"{limit.rate * 1e6:,.2f}/s" if limit.paced else "-",
                    f"{limit.expected_use:.1%}",
                )
            )
    names = ("deployment", "limit", "allowed", "per", "used", "level", "burst", "refill", "uses")
    say_table(names, rows, numbers=names[2:])


def describe(name: str, terms: Terms, standing: Standing) -> str:
    """One line on how a deployment stands."""
    most = f" of {terms.max_in_flight:,}" if terms.max_in_flight else ""
    parts = [f"{standing.in_flight:,}{most} in flight", f"settlement {in_force(terms, standing)}"]
    if standing.factor < 1:
        parts.append(f"rate narrowed to {standing.factor:.0%} after refusals, heals by itself")
    return f"{name} is {state(standing)}; {', '.join(parts)}"


def state(standing: Standing) -> str:
    """`open`, or what keeps the deployment closed."""
    if standing.paused_s > 0:
        return f"paused for {seconds(standing.paused_s)} ({standing.why})"
    return f"waiting for a probe to end its pause ({standing.why})" if standing.why else "open"


def in_force(terms: Terms, standing: Standing) -> str:
    """What becomes of unused tokens now: what `auto` has found out, or what was set."""
    if terms.settlement != "auto":
        return terms.settlement
    return "auto: refund, proven by the provider's headers" if standing.refunds else "auto: none"


def _stated_lower(terms: Terms, level: Level) -> str:
    """What to say when the provider's headers state less than is set."""
    limit = next((limit.limit for limit in terms.limits if limit.name == level.limit), 0)
    if level.allowed >= limit:
        return ""
    cure = f"tokenweir limits set {level.deployment} {level.limit}={level.allowed}"
    return f"{level.deployment} {level.limit}: the provider states {level.allowed:,}, which is used -> {cure}"


def _new_terms(args: argparse.Namespace, target: Target, limits: LimitsView) -> dict[str, Terms]:
    """What shall be in force, by deployment."""
    asked = wanted(args.words)
    if args.action == "set":
        name = chosen(asked.deployment, limits.deployments)
        return {name: changed(limits.deployments[name], asked.values)}
    configured = {one.name: configured_terms(one) for one in target.pool.deployments if one.name in limits.deployments}
    if not configured:
        raise UsageError("no deployment of the configuration has limits in Redis; is it the right file and pool?")
    if not asked.deployment:
        return configured
    name = chosen(asked.deployment, configured)
    return {name: configured[name]}


async def _put(args: argparse.Namespace, views: Views, limits: LimitsView, new: Mapping[str, Terms]) -> int:
    """Put `new` in force and say what it changed."""
    rows = [
        (name, *difference)
        for name, terms in new.items()
        for difference in differences(limits.deployments[name], terms)
    ]
    version = limits.version
    if rows and not args.dry_run:
        version = await views.put_limits({name: new[name] for name in new if any(row[0] == name for row in rows)})
        if not version:
            remark("the limits in Redis were deleted meanwhile, nothing was changed: see `tokenweir limits show`")
            return _FAILED
    if args.json:
        changes: dict[str, dict[str, Any]] = {name: {} for name in new}
        for name, what, before, after in rows:
            changes[name][what] = {"before": before, "after": after}
        say_json({"version": version, "dry_run": args.dry_run, "changes": changes})
    elif not rows:
        say(f"nothing to change: that is in force already, version {version}")
    else:
        for name, what, before, after in rows:
            say(f"{name} {what}: {before} -> {after}")
        say("dry run: nothing was changed" if args.dry_run else f"in force for all workers now, version {version}")
    return 0


async def _resume(args: argparse.Namespace, views: Views, limits: LimitsView) -> int:
    asked = wanted(args.words).deployment
    names = [chosen(asked, limits.deployments)] if asked else list(limits.deployments)
    resumed = await views.resume(names)
    for name in resumed:
        say(f"{name} is open again, with its whole rate")
    if not resumed:
        say(f"nothing to resume: {', '.join(names)} {'is' if len(names) == 1 else 'are'} open")
    return 0


def _nothing(pool: str) -> str:
    return f"pool {pool} has no limits in Redis yet: the first worker puts the configured ones there"
