"""The load that every limiter gets, ours and others', so that only the limiter differs.

Runs in each peer's own environment, so it needs nothing but the standard library (uvloop where it is there).
A peer's file says how one acquire is made; `serve` then takes jobs as JSON lines and answers with figures, so
that one process a peer serves a whole run and peers can be measured in turn.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

Acquire = Callable[[], Awaitable[bool]]
# What of a window is over when the load of `worst` sets in.
_QUIET = 0.9
_WARM = 3


class Job(NamedTuple):
    """One measurement.

    Attributes:
        key: a name of its own, so that no job sees what another has used up.
        limit, window_s: what the limiter must keep. tokens: of a second limit, where the limiter has one.
        pace_s: each caller begins an acquire so often; 0 = as soon as the last one ended.
        worst: one acquire, most of a window's quiet, then load for two and a half windows.
    """

    url: str
    variant: str
    key: str
    limit: int
    window_s: int
    callers: int
    seconds: float
    pace_s: float = 0.0
    worst: bool = False
    start_at: float = 0.0


class Limiter(NamedTuple):
    """One opened limiter: `acquire` says at once whether it was granted."""

    acquire: Acquire
    close: Callable[[], Awaitable[object]]


Open = Callable[[Job], Awaitable[Limiter]]


def serve(open_limiter: Open) -> None:
    """Answer jobs from stdin until it ends."""
    try:
        import uvloop
    except ImportError:
        run: Callable[..., object] = asyncio.run
    else:
        run = uvloop.run
    for line in sys.stdin:
        try:
            answer = run(_measured(open_limiter, Job(**json.loads(line))))
        except Exception as error:  # the table must say so, and the other peers go on
            answer = {"failed": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


async def _measured(open_limiter: Open, job: Job) -> dict[str, float]:
    limiter = await open_limiter(job)
    try:
        await limiter.acquire()  # sends the script
        if not job.worst:
            for _ in range(_WARM):  # opens as many connections as there are callers
                await asyncio.gather(*(limiter.acquire() for _ in range(job.callers)))
        if job.worst:
            await asyncio.sleep(_QUIET * job.window_s)
        taken, granted_at, cpu_s, wall_s = await _load(limiter.acquire, job)
    finally:
        await limiter.close()
    taken.sort()
    return {
        "decisions_per_s": len(taken) / wall_s,
        "granted": len(granted_at) / len(taken),
        "decisions": len(taken),
        "p50_ms": taken[len(taken) // 2] * 1000,
        "p99_ms": taken[min(len(taken) - 1, len(taken) * 99 // 100)] * 1000,
        "client_us": cpu_s / len(taken) * 1e6,
        "worst_share": _most(granted_at, job.window_s) / job.limit,
        "used_share": sum(at > wall_s - 2 * job.window_s for at in granted_at) / (2 * job.limit),
    }


async def _load(acquire: Acquire, job: Job) -> tuple[list[float], list[float], float, float]:
    """Each acquire's time, when granted ones were (from the start), and CPU and wall time of all."""
    taken: list[float] = []
    granted_at: list[float] = []
    clock = time.perf_counter
    await asyncio.sleep(max(0.0, job.start_at - time.time()))
    began, cpu = clock(), _cpu_s()
    end = began + job.seconds

    async def call(place: int) -> None:
        due = began + job.pace_s * place / job.callers
        while (now := clock()) < end:
            if job.pace_s:
                await asyncio.sleep(max(0.0, due - now))
                due += job.pace_s
                now = clock()
            granted = await acquire()
            after = clock()
            taken.append(after - now)
            if granted:
                granted_at.append(after - began)
            else:
                await asyncio.sleep(0)  # a refusal may come without a wait, and others must have their turn

    await asyncio.gather(*(call(place) for place in range(job.callers)))
    return taken, granted_at, _cpu_s() - cpu, clock() - began


def _most(granted_at: list[float], window_s: float) -> int:
    """The most grants in any window, by the time at which the caller had them."""
    most, first = 0, 0
    for last, at in enumerate(granted_at):
        while granted_at[first] <= at - window_s:
            first += 1
        most = max(most, last - first + 1)
    return most


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
