"""Whether a Redis is fit to carry a pool: each finding with its cure. Changes nothing there."""

from __future__ import annotations

import time
from typing import Any, Literal, NamedTuple

from lua import load
from tokenweir.connection import Argument, Connection
from tokenweir.errors import StoreUnavailable
from tokenweir.keys import Keys

_PROBE = load("server_probe")
# Deadlines come from producers' clocks and are judged by Redis's.
_DRIFT_S = 1.0


class Finding(NamedTuple):
    """One thing that was looked at: `ok`, `warn` (works, but not as it should) or `FAIL`, and what mends it."""

    mark: Literal["ok", "warn", "FAIL"]
    about: str
    text: str
    cure: str = ""


async def examine(connection: Connection) -> list[Finding]:
    """Everything about the server, the gravest first as far as one depends on the other.

    Raises:
        StoreUnavailable: it can't be reached at all.
    """
    info: dict[str, Any] = await connection.command("INFO", "everything")
    found = [_version(info), await _floor(connection)]
    if found[-1].mark == "FAIL":
        return found
    return [*found, _policy(info), *_persistence(info), await _clock(connection), *await _rights(connection)]


def _version(info: dict[str, Any]) -> Finding:
    name = "Valkey" if info.get("valkey_version") else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "?")
    return Finding("ok", "redis", f"{name} {version}, {info.get('redis_mode', info.get('server_mode', 'standalone'))}")


async def _floor(connection: Connection) -> Finding:
    """Commands are tried, versions not believed: Valkey 9.1 says it is Redis 7.2."""
    cure = "use Redis >= 7.0 or Valkey; `embedded:` brings one along"
    try:
        await connection.run(_PROBE)
    except StoreUnavailable as error:
        if "NOPERM" in str(error):
            return Finding("FAIL", "commands", f"scripts may not be run: {error}", "grant +@scripting to this user")
        return Finding("FAIL", "commands", f"scripts with flags don't run: {error}", cure)
    try:
        await connection.command("XAUTOCLAIM", connection.keys.key("deferred"), "-", "-", 0, "0-0", "COUNT", 1)
    except StoreUnavailable as error:
        # There is no such group: that it says so is the proof.
        if "unknown command" in str(error):
            return Finding("FAIL", "commands", "XAUTOCLAIM is unknown here", cure)
    return Finding("ok", "commands", "scripts with flags run, XAUTOCLAIM is known")


def _policy(info: dict[str, Any]) -> Finding:
    policy = info.get("maxmemory_policy", "unknown")
    if policy == "noeviction":
        return Finding("ok", "eviction", "noeviction: nothing queued is ever thrown away")
    cure = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
    return Finding("FAIL", "eviction", f"{policy} may throw queued requests and budgets away", cure)


def _persistence(info: dict[str, Any]) -> list[Finding]:
    if not info.get("aof_enabled"):
        cure = "CONFIG SET appendonly yes, and the same in redis.conf"
        return [
            Finding("warn", "persistence", "no append-only file: a crash loses what came in since the last dump", cure)
        ]
    if info.get("aof_last_write_status") != "ok":
        return [
            Finding("FAIL", "persistence", "the append-only file can't be written", "look at its disk and server log")
        ]
    return [Finding("ok", "persistence", "append-only file on")]


async def _clock(connection: Connection) -> Finding:
    before = time.time()
    at_s, at_us = await connection.run(_PROBE)
    middle = (before + time.time()) / 2
    drift_s = int(at_s) + int(at_us) / 1e6 - middle
    if abs(drift_s) < _DRIFT_S:
        return Finding("ok", "clock", f"{abs(drift_s) * 1000:.0f} ms from this machine's")
    text = f"{abs(drift_s):.1f} s {'ahead of' if drift_s > 0 else 'behind'} this machine's"
    return Finding("warn", "clock", f"{text}: deadlines are judged by Redis's", "run NTP on both machines")


async def _rights(connection: Connection) -> list[Finding]:
    """What this user may do, without doing it."""
    try:
        user = (await connection.command("ACL", "WHOAMI")).decode()
        rows = needed(connection.keys)
        answers = await connection.commands([("ACL", "DRYRUN", user, *words) for words in rows])
    except StoreUnavailable as error:
        return [Finding("ok", "rights", f"not looked at: this user may not ask ({_reason(error)})")]
    refused = [
        (" ".join(map(str, words[:2])), answer.decode(errors="replace"))
        for words, answer in zip(rows, answers, strict=True)
        if answer != b"OK"
    ]
    if not refused:
        return [Finding("ok", "rights", f"user {user} may do all {len(rows)} things that a worker does")]
    return [
        Finding("FAIL", "rights", f"{words}: {answer}", f"ACL SETUSER {user} with that right")
        for words, answer in refused
    ]


def needed(keys: Keys) -> list[tuple[Argument, ...]]:
    """Every command of a worker and its scripts, on a key of each kind, with as few arguments as it takes."""
    stream, status, backlog = keys.key("ingest"), keys.status("x"), keys.key("backlog:batch")
    on_stream: list[tuple[Argument, ...]] = [
        ("XADD", stream, "*", "a", "b"),
        ("XGROUP", "CREATE", stream, "g", "0"),
        ("XREADGROUP", "GROUP", "g", "c", "STREAMS", stream, ">"),
        ("XAUTOCLAIM", stream, "g", "c", 0, "0"),
        ("XCLAIM", stream, "g", "c", 0, "1-1"),
        ("XPENDING", stream, "g"),
        ("XACK", stream, "g", "1-1"),
        ("XINFO", "GROUPS", stream),
    ]
    on_stream += [("XDEL", stream, "1-1"), ("XRANGE", stream, "-", "+"), ("XLEN", stream)]
    on_hash: list[tuple[Argument, ...]] = [("HSET", status, "a", "b"), ("HGET", status, "a"), ("HMGET", status, "a")]
    on_hash += [("HSETNX", status, "a", "b"), ("HRANDFIELD", status, 1)]
    on_hash += [("HGETALL", status), ("HDEL", status, "a"), ("HEXISTS", status, "a"), ("HINCRBY", status, "a", 1)]
    on_hash += [("HLEN", status), ("EXPIRE", status, 1), ("PEXPIRE", status, 1), ("PERSIST", status)]
    on_set: list[tuple[Argument, ...]] = [("ZADD", backlog, 1, "a"), ("ZREM", backlog, "a"), ("ZCARD", backlog)]
    on_set += [("ZRANGE", backlog, 0, 0), ("ZRANGEBYSCORE", backlog, 0, 1), ("ZCOUNT", backlog, 0, 1)]
    on_set += [("ZRANK", backlog, "a")]
    others: list[tuple[Argument, ...]] = [("EVALSHA", "0" * 40, 1, stream), ("EVAL", "return 1", 1, stream), ("TIME",)]
    others += [("SET", keys.key("budget:a"), "1"), ("GET", keys.key("budget:a")), ("SET", keys.key("edge:alive"), "1")]
    others += [("EXISTS", stream), ("DEL", backlog), ("INFO", "server")]
    others += [("CLIENT", "ID"), ("CLIENT", "UNBLOCK", 1)]
    return [*on_stream, *on_hash, *on_set, *others]


def _reason(error: StoreUnavailable) -> str:
    return str(error).rpartition(": ")[2]
