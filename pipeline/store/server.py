"""What a server says of itself: mode, memory, persistence, replicas, each with the cure of what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.store.finding import Finding

_FILLING, _FULL = 0.8, 0.95
# A replica that lags more than this would lose that much at a fail-over.
_MOST_LAG_BYTES, _MOST_LAG_S = 10_000_000, 10
# What `CONFIG GET` is asked for, where that may be asked.
SETTINGS = ("appendfsync", "min-replicas-to-write", "stop-writes-on-bgsave-error")


def version(info: Mapping[str, Any]) -> Finding:
    """What it is."""
    name = "Valkey" if info.get("valkey_version") else "Redis"
    number = info.get("valkey_version") or info.get("redis_version", "?")
    return Finding("ok", "redis", f"{name} {number}, {_mode(info)}")


def findings(info: Mapping[str, Any], settings: Mapping[str, str], *, waitaof: bool) -> list[Finding]:
    """All that `INFO` tells.

    Args:
        settings: those of `SETTINGS` that could be read. waitaof: whether that command is known.
    """
    return [
        *_role(info),
        _policy(info),
        _memory(info),
        *_persistence(info, settings),
        *_replicas(info, settings),
        _durability(info, settings, waitaof=waitaof),
    ]


def _mode(info: Mapping[str, Any]) -> str:
    return str(info.get("redis_mode", info.get("server_mode", "standalone")))


def _role(info: Mapping[str, Any]) -> list[Finding]:
    found = []
    if _mode(info) == "cluster":
        found.append(Finding("ok", "cluster", "on: a pool's keys share one slot, pools spread over the primaries"))
    if info.get("role") in ("slave", "replica"):
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        text = f"this is a replica of {primary}: it refuses writes (READONLY)"
        found.append(Finding("FAIL", "role", text, "name the primary's address, or one that follows it"))
    if info.get("loading"):
        found.append(Finding("warn", "role", "it is loading its data, and answers nothing else yet", "wait for it"))
    return found


def _policy(info: Mapping[str, Any]) -> Finding:
    policy = info.get("maxmemory_policy", "unknown")
    if policy == "noeviction":
        return Finding("ok", "eviction", "noeviction: nothing queued is ever thrown away")
    cure = "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf"
    return Finding("FAIL", "eviction", f"{policy} may throw queued requests and budgets away", cure)


def _memory(info: Mapping[str, Any]) -> Finding:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not most:
        cure = "CONFIG SET maxmemory to 60-70 % of the machine's, and the same in redis.conf"
        return Finding("warn", "memory", f"{_size(used)} used, no maxmemory: the kernel ends a server that grows", cure)
    text = f"{_size(used)} of {_size(most)} used ({used / most:.0%})"
    cure = "raise maxmemory; `tokenweir status` says what waits, `tokenweir dead drop` and fewer results kept make room"
    if used >= _FULL * most:
        return Finding("FAIL", "memory", f"{text}: submits are refused or will be, while work goes on", cure)
    if used >= _FILLING * most:
        return Finding("warn", "memory", text, cure)
    return Finding("ok", "memory", text)


def _persistence(info: Mapping[str, Any], settings: Mapping[str, str]) -> list[Finding]:
    found = []
    if info.get("rdb_last_bgsave_status", "ok") != "ok" and settings.get("stop-writes-on-bgsave-error") != "no":
        text = "the last dump failed: with stop-writes-on-bgsave-error all writes are refused (MISCONF)"
        cure = "make room on its disk, then BGSAVE; its server log says why"
        found.append(Finding("FAIL", "dump", text, cure))
    if not info.get("aof_enabled"):
        cure = "CONFIG SET appendonly yes, and the same in redis.conf"
        text = "no append-only file: a crash loses what came in since the last dump"
        return [*found, Finding("warn", "persistence", text, cure)]
    if info.get("aof_last_write_status") != "ok":
        cure = "make room on its disk, look at its server log; it goes on by itself"
        text = "the append-only file can't be written: writes are refused (MISCONF)"
        return [*found, Finding("FAIL", "persistence", text, cure)]
    if info.get("aof_last_bgrewrite_status", "ok") != "ok":
        cure = "make room on its disk or in memory, then BGREWRITEAOF"
        return [*found, Finding("warn", "persistence", "the append-only file's last rewrite failed: it grows", cure)]
    fsync = settings.get("appendfsync", "")
    if fsync == "no":
        cure = "CONFIG SET appendfsync everysec, and the same in redis.conf"
        return [*found, Finding("warn", "persistence", "append-only file on, written when the kernel likes", cure)]
    return [*found, Finding("ok", "persistence", f"append-only file on{f', fsync {fsync}' if fsync else ''}")]


def _replicas(info: Mapping[str, Any], settings: Mapping[str, str]) -> list[Finding]:
    found = []
    least = int(settings.get("min-replicas-to-write", 0))
    # Said only where min-replicas-to-write is set.
    good = info.get("min_slaves_good_slaves")
    if good is not None and int(good) < max(1, least):
        text = f"{good} of the {max(1, least)} that min-replicas-to-write asks for: all writes are refused (NOREPLICAS)"
        cure = "bring a replica back, or CONFIG SET min-replicas-to-write 0 for as long as there is none"
        found.append(Finding("FAIL", "replicas", text, cure))
    replicas = _connected(info)
    if not replicas:
        text = "none: this server's loss is a stop, and the loss of what its disk doesn't have"
        return [*found, Finding("ok", "replicas", text)]
    behind = max(int(info.get("master_repl_offset", 0)) - int(one.get("offset", 0)) for one in replicas)
    lag_s = max(int(one.get("lag", 0)) for one in replicas)
    text = f"{len(replicas)}, the last {_size(behind)} and {lag_s} s behind"
    if any(one.get("state") != "online" for one in replicas) or behind > _MOST_LAG_BYTES or lag_s > _MOST_LAG_S:
        cure = "look at its log, its network and repl-backlog-size: a fail-over now would lose that much"
        return [*found, Finding("warn", "replicas", text, cure)]
    found.append(Finding("ok", "replicas", text))
    if good is None:
        text = "min-replicas-to-write is 0: a primary that is cut off goes on taking in what a fail-over loses"
        found.append(
            Finding("warn", "replicas", text, "CONFIG SET min-replicas-to-write 1, and the same in redis.conf")
        )
    return found


def _durability(info: Mapping[str, Any], settings: Mapping[str, str], *, waitaof: bool) -> Finding:
    """What a producer can wait for after a write."""
    levels = ["this server's memory"]
    if info.get("aof_enabled"):
        if settings.get("appendfsync") == "always":
            levels.append("its disk (fsync always)")
        elif waitaof:
            levels.append("its disk (WAITAOF 1 0)")
        else:
            levels.append("its disk within a second (WAITAOF is unknown here: Redis 7.2 or Valkey have it)")
    replicas = len(_connected(info))
    if replicas:
        levels.append(f"up to {replicas} replica{'s' if replicas > 1 else ''} (WAIT {replicas})")
    return Finding("ok", "durability", f"a write can be known to be in {', '.join(levels)}")


def _connected(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    names = (f"slave{index}" for index in range(int(info.get("connected_slaves", 0))))
    return [one for name in names if isinstance(one := info.get(name), dict)]


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{max(0, count)} B"
