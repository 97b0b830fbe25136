"""What a bench measures with: servers of each kind, their CPU, our CPU, and the conditions of a run."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from redis import Redis

from pipeline.embedded import ensure
from tests.support import running_server, server_binary
from tokenweir.connection import Connection, connect
from tokenweir.keys import Keys


class Target(NamedTuple):
    """A live server: what to call it in a table, its unix socket and its loopback port."""

    name: str
    url: str
    tcp_url: str


@contextmanager
def servers() -> Iterator[list[Target]]:
    """The servers there are: Redis from PATH (nothing is written to disk), and the embedded Valkey as users get it."""
    with ExitStack() as ends:
        found = []
        if server_binary("redis"):
            redis = ends.enter_context(running_server("redis"))
            found.append(Target("redis", redis.url, redis.tcp_url))
        folder = ends.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        embedded = ends.enter_context(ensure(Path(folder) / "state"))
        found.append(Target("embedded", embedded.url, embedded.tcp_url))
        yield [_named(target) for target in found]


def _named(target: Target) -> Target:
    """The target, with what its server is in its name."""
    with Redis.from_url(target.url) as client:
        info = client.info("server")
        persistence = client.info("persistence")
    assert isinstance(info, dict)
    assert isinstance(persistence, dict)
    kind = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
    return target._replace(name=f"{kind}, {'AOF on' if persistence['aof_enabled'] else 'no AOF'}")


class Cost(NamedTuple):
    """CPU in seconds of the server's process and of ours, and the time on the wall."""

    server_s: float
    client_s: float
    wall_s: float


class Meter:
    """Reads the server's CPU clock, all its threads together, and ours."""

    def __init__(self, url: str) -> None:
        self._connection = Connection(connect(url, max_connections=1), Keys("meter"))
        self._from = Cost(0, 0, 0)

    async def _now(self) -> Cost:
        cpu = await self._connection.command("INFO", "cpu")
        return Cost(cpu["used_cpu_user"] + cpu["used_cpu_sys"], cpu_s(), time.perf_counter())

    async def begin(self) -> None:
        """From here."""
        self._from = await self._now()

    async def end(self) -> Cost:
        """What was used since `begin`; reading the clock itself costs the server some 50 us."""
        return Cost(*(now - then for now, then in zip(await self._now(), self._from, strict=True)))

    async def aclose(self) -> None:
        """Close the connection."""
        await self._connection.aclose()


def cpu_s() -> float:
    """CPU seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def median(values: Iterable[float]) -> float:
    """The median; 0 of nothing."""
    found = list(values)
    return statistics.median(found) if found else 0.0


def conditions() -> dict[str, object]:
    """Date, machine and versions of a run."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_1_min": round(os.getloadavg()[0], 2),
        "platform": platform.platform(terse=True),
        "python": platform.python_version(),
        **{name: version(name) for name in ("redis", "hiredis", "uvloop", "msgspec")},
    }
