"""What a deployment uses when it has nothing to do, to be compared with what it used before."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import msgspec

from tests.integration.rig import Rig
from tokenweir.keys import GROUPS, PERMANENT

# What is kept by design, for those who come late: it says nothing of leaks.
_KEPT = ("responses", "dead")


class Health(msgspec.Struct, frozen=True):
    """At rest.

    Attributes:
        redis_bytes: `used_memory` without connections' buffers, and with nothing on `responses` and `dead`.
        worker_kb: the largest resident size of a worker. workers: how many live.
        connections: to Redis. consumers: known to its groups.
        stray: keys that would live for ever and aren't meant to. expiring: keys with a time to live.
    """

    redis_bytes: int
    worker_kb: int
    workers: int
    connections: int
    consumers: int
    stray: list[str]
    expiring: int


def measure(rig: Rig) -> Health:
    """As it is now."""
    for name in _KEPT:
        rig.redis.xtrim(rig.keys.key(name), maxlen=0, approximate=False)
    rig.command("MEMORY", "PURGE")
    names = [key.decode().removeprefix(rig.keys.root) for key in rig.redis.scan_iter(f"{rig.keys.root}*", count=1000)]
    mortal = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in PERMANENT)]
    live = [pid for run in rig.runs for pid in run.live]
    about = rig.redis.info("memory")
    return Health(
        redis_bytes=about["used_memory"] - about["mem_clients_normal"] - about["mem_aof_buffer"],
        worker_kb=max(map(_resident_kb, live), default=0),
        workers=len(live),
        connections=rig.redis.info("clients")["connected_clients"],
        consumers=sum(
            len(cast("list[Any]", rig.redis.xinfo_consumers(rig.keys.key(lane), GROUPS[lane]))) for lane in GROUPS
        ),
        stray=[name for name in mortal if rig.redis.ttl(rig.keys.key(name)) == -1],
        expiring=len(mortal),
    )


def rest(rig: Rig, *, workers: int, expiring: int, base: Health | None = None, timeout_s: float = 120.0) -> Health:
    """What it uses once all workers are back, statuses have expired and, if `base` is given, it looks like that again.

    After `timeout_s` as it is then.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = measure(rig)
        calm = found.workers == workers and found.expiring <= expiring and not found.stray
        if (calm and (base is None or not differences(base, found))) or time.monotonic() > deadline_s:
            return found
        time.sleep(0.2)


def differences(base: Health, now: Health) -> dict[str, str]:
    """What isn't as it was: memory within a tenth (workers: a quarter), connections and consumers within a few."""
    found = {}
    if abs(now.redis_bytes / base.redis_bytes - 1) > 0.1:
        found["redis_bytes"] = f"{base.redis_bytes} -> {now.redis_bytes}"
    if now.worker_kb > 1.25 * base.worker_kb:
        found["worker_kb"] = f"{base.worker_kb} -> {now.worker_kb}"
    # A control pool opens up to three connections more when it is busy.
    if now.connections > base.connections + 3 * base.workers:
        found["connections"] = f"{base.connections} -> {now.connections}"
    # Each loop is known to each of its streams, once it has had something of it.
    if now.consumers > base.workers * len(GROUPS):
        found["consumers"] = f"{base.consumers} -> {now.consumers}"
    if now.workers != base.workers:
        found["workers"] = f"{base.workers} -> {now.workers}"
    if now.stray:
        found["stray"] = ", ".join(now.stray[:5])
    return found


def _resident_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)
