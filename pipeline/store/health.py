"""Whether a Redis is fit to carry a pool: each finding with its cure. Changes nothing there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lua import load
from pipeline.store import server
from pipeline.store.finding import Finding
from pipeline.store.rights import ROLES, SPARED, refused
from tokenweir.connection import Connection
from tokenweir.errors import StoreUnavailable
from tokenweir.keys import GROUPS

_PROBE = load("server_probe")
# Deadlines come from producers' clocks and are judged by Redis's.
_DRIFT_S = 1.0
_MOST_NAMED = 6
# What the keys with one name of a pool hold.
KINDS = {**dict.fromkeys((*GROUPS, "responses", "dead"), "stream"), "limits": "hash"}


async def examine(connection: Connection) -> list[Finding]:
    """Everything about the server, the gravest first as far as one depends on the other.

    Raises:
        StoreUnavailable: it can't be reached at all.
    """
    info = await _info(connection)
    if info is None:
        found = [Finding("ok", "redis", "the server isn't looked at: this user may not ask it (INFO)")]
    else:
        found = [server.version(info)]
        if info.get("redis_mode") == "sentinel":
            cure = "name the server that it watches, or write redis+sentinel://"
            return [*found, Finding("FAIL", "role", "this is a Sentinel, which holds no data", cure)]
    found.append(await _floor(connection))
    if found[-1].mark == "FAIL":
        return found
    if info is not None:
        found += server.findings(info, await _settings(connection), waitaof=await _knows_waitaof(connection))
    return [*found, await _clock(connection), *await _rights(connection)]


async def _info(connection: Connection) -> dict[str, Any] | None:
    try:
        info: dict[str, Any] = await connection.command("INFO", "everything")
    except StoreUnavailable as error:
        if not error.forbidden:
            raise
        return None
    return info


async def _settings(connection: Connection) -> dict[str, str]:
    """What of `server.SETTINGS` this user may see."""
    try:
        found = await connection.command("CONFIG", "GET", *server.SETTINGS)
    except StoreUnavailable:
        return {}
    pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
    return {_text(name): _text(value) for name, value in pairs}


async def _knows_waitaof(connection: Connection) -> bool:
    """Asks for nothing to wait for. Who may not run it learns at least that there is such a command."""
    try:
        await connection.command("WAITAOF", 0, 0, 1)
    except StoreUnavailable as error:
        return "unknown command" not in str(error)
    return True


async def _floor(connection: Connection) -> Finding:
    """Commands are tried, versions not believed: Valkey 9.1 says it is Redis 7.2."""
    cure = "use Redis >= 7.0 or Valkey; `embedded:` brings one along"
    try:
        await connection.run(_PROBE)
    except StoreUnavailable as error:
        if error.forbidden:
            text = f"scripts may not be run on {connection.keys.key('limits')}: {_reason(error)}"
            return Finding("FAIL", "commands", text, _grant("EVAL and EVALSHA on the pool's keys"))
        return Finding("FAIL", "commands", f"scripts with flags don't run: {error}", cure)
    try:
        await connection.command("XAUTOCLAIM", connection.keys.key("deferred"), "-", "-", 0, "0-0", "COUNT", 1)
    except StoreUnavailable as error:
        # There is no such group: that it says so is the proof.
        if "unknown command" in str(error):
            return Finding("FAIL", "commands", "XAUTOCLAIM is unknown here", cure)
    return Finding("ok", "commands", "scripts with flags run, XAUTOCLAIM is known")


async def _clock(connection: Connection) -> Finding:
    before = time.time()
    at_s, at_us = await connection.run(_PROBE)
    middle = (before + time.time()) / 2
    drift_s = int(at_s) + int(at_us) / 1e6 - middle
    if abs(drift_s) < _DRIFT_S:
        return Finding("ok", "clock", f"{abs(drift_s) * 1000:.0f} ms from this machine's")
    text = f"{abs(drift_s):.1f} s {'ahead of' if drift_s > 0 else 'behind'} this machine's"
    return Finding("warn", "clock", f"{text}: deadlines are judged by Redis's", "run NTP on both machines")


async def unfit(connection: Connection, role: str) -> list[Finding]:
    """What keeps a program of this role from its work here: rights it lacks, keys that hold something else.

    Raises:
        StoreUnavailable: Redis didn't answer.
    """
    try:
        lacking = await refused(connection, role)
    except StoreUnavailable as error:
        if not error.forbidden:
            raise
        return [Finding("FAIL", "rights", f"scripts may not be run: {_reason(error)}", _grant("EVAL and EVALSHA"))]
    vital = [each for each in lacking if not each.startswith(SPARED)]
    if vital:
        text = f"{await _user(connection)} may not {_some(vital)}, which a {role} needs"
        return [Finding("FAIL", "rights", text, _grant("it"))]
    found = []
    if lacking:
        text = f"{await _user(connection)} may not {_some(lacking)}: less is shown and tidied up, all work is done"
        found.append(Finding("warn", "rights", text, _grant("it")))
    return found + await _types(connection)


async def _types(connection: Connection) -> list[Finding]:
    """Keys of ours that somebody put something else into."""
    names = [connection.keys.key(name) for name in KINDS]
    try:
        kinds = await connection.commands([("TYPE", name) for name in names])
    except StoreUnavailable as error:
        if not error.forbidden:
            raise
        return []
    found = []
    for name, kind, wanted in zip(names, kinds, KINDS.values(), strict=True):
        there = _text(kind)
        if there not in ("none", wanted):
            cure = f"RENAME '{name}' to another name if it is somebody's, else DEL it"
            found.append(Finding("FAIL", "keys", f"{name} is a {there}, where a {wanted} belongs", cure))
    return found


async def _rights(connection: Connection) -> list[Finding]:
    """What this user may do, without doing it, and whether the pool's keys are its own."""
    found = await unfit(connection, "worker")
    if not any(finding.about == "rights" for finding in found):
        return [Finding("ok", "rights", f"{await _user(connection)} may do all that a worker does"), *found]
    if all(finding.mark != "FAIL" for finding in found if finding.about == "rights"):
        return found
    fitting = [role for role in ROLES if role != "worker" and not await refused(connection, role)]
    # Who may take work off inner streams was meant to be a worker.
    if not fitting or f"XREADGROUP {connection.keys.key('premium')}" not in await refused(connection, "worker"):
        return found
    # The largest of those it fits says most: an operator may do what a producer may.
    whose = f"an {fitting[-1]}" if fitting[-1] == "operator" else f"a {fitting[-1]}"
    text = f"{await _user(connection)} may do all that {whose} does, and not what a worker does"
    return [Finding("warn", "rights", text, "right if no worker uses this URL; see deploy/redis/README.md")]


async def _user(connection: Connection) -> str:
    try:
        name = await connection.command("ACL", "WHOAMI")
    except StoreUnavailable:
        return "this user"
    return f"user {_text(name)}"


def _some(lacking: Sequence[str]) -> str:
    more = f" and {len(lacking) - _MOST_NAMED} more" if len(lacking) > _MOST_NAMED else ""
    return ", ".join(lacking[:_MOST_NAMED]) + more


def _grant(what: str) -> str:
    return f"grant {what}: deploy/redis/users.acl has all that each kind of user needs"


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _reason(error: StoreUnavailable) -> str:
    return str(error).rpartition(": ")[2]
