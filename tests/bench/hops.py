"""What the pipeline itself costs: three stage hops (classify, gate, premium) with the model call left out.

Two figures in one run, on one machine, so that their ratio means something: the same load through the
engine, and over a bare stream hop (XADD, XREADGROUP, XACK, XADD, XREAD), which is the floor. All else is real:
validation, token counts, the gate script with two limits, settlement, status, log lines, metrics.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from rich.table import Table

from pipeline import logs, tokens
from pipeline.answer import Answer, Stopwatch, answered
from pipeline.config import Deployment, Pool
from pipeline.loop import LoopSettings, StageLoop
from pipeline.metrics import Metrics
from pipeline.outcome import Done, Outcome, Used
from pipeline.stage import Delivery
from pipeline.store import Store
from stages.classify import Classify
from stages.deferred import Deferred
from stages.gate import GateStage
from tokenweir.connection import Connection, connect
from tokenweir.keys import Keys
from tokenweir.wire import Usage

# Agreed for 100 requests/s.
GOAL_P50_MS, GOAL_P99_MS = 5.0, 25.0
PROMPT = "Where is my parcel, and why has it not arrived? " * 21  # 1 kB
# Never refuses; a short window, so that the cold start is over before the measurement.
ROOMY = Pool(
    deployments=(Deployment(name="roomy", api_key="none", rpm=10_000_000, tpm=10_000_000_000, window_s=1),),
    max_request_tokens=100_000,
)


class Figures(NamedTuple):
    """Latency from XADD to the result in the reader's hands, and the CPU the worker spent per request."""

    sent: int
    answered: int
    p50_ms: float
    p99_ms: float
    cpu_us: float


class InstantAnswer:
    """A premium stage whose provider answers at once: everything but the HTTP call."""

    name = "premium"
    lanes: tuple[str, ...] = ("premium",)
    concurrency = 64
    calls = True
    longest_s = 60.0
    ready = True

    async def handle(self, delivery: Delivery) -> Outcome:
        """An answer without a call."""
        watch = Stopwatch(delivery.waited_ms)
        request = delivery.request
        usage = Usage(prompt_tokens=request.prompt_tokens, completion_tokens=1, total_tokens=request.prompt_tokens + 1)
        answer = Answer(model="none", content="ok", body=b"{}", finish_reason="stop", usage=usage)
        result = answered(request, answer, route="premium", times=watch.times())
        return Done(result=result, used=Used(usage.prompt_tokens, usage.completion_tokens))

    async def run(self, stop: asyncio.Event) -> None:
        """Nothing beside."""

    async def aclose(self) -> None:
        """Nothing was opened."""


async def _work(url: str) -> None:
    """A worker with the stages of three hops, until SIGTERM; prints its CPU seconds at the end."""
    keys, stop = Keys("bench"), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store, metrics = Store(url, keys, ROOMY), Metrics("bench", ["roomy"])
    await store.gate.seed()
    await store.gate.beat(premium_slots=64, edge_slots=0, ttl_ms=600_000)
    settings = LoopSettings(lease_s=30, drain_s=5, max_deliveries=3, max_attempts=3)
    stages = (Classify(ROOMY, keys), GateStage(), InstantAnswer(), Deferred())
    loops = [StageLoop(stage, store, metrics, settings) for stage in stages]
    began = _cpu_s()
    async with asyncio.TaskGroup() as group:
        for loop in loops:
            group.create_task(loop.run(stop))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
    await store.aclose()
    sys.stdout.write(json.dumps({"cpu_s": _cpu_s() - began}) + "\n")


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def measure(
    url: str, rates: list[int], seconds: float, *, progress: Callable[[], None]
) -> list[tuple[int, Figures, Figures]]:
    """Each rate with the floor and the pipeline, one after the other."""
    rows = []
    for rate in rates:
        floor = await bare(url, rate=rate, seconds=seconds)
        progress()
        rows.append((rate, floor, await engine(url, rate=rate, seconds=seconds)))
        progress()
    return rows


def table(rows: list[tuple[int, Figures, Figures]]) -> Table:
    """The figures for people."""
    shown = Table(title="Added by three stage hops, 1 kB prompts, one worker process")
    for column in ("requests/s", "floor p50 / p99 ms", "pipeline p50 / p99 ms", "answered", "worker CPU us/request"):
        shown.add_column(column, justify="right")
    for rate, floor, ours in rows:
        shown.add_row(
            str(rate),
            f"{floor.p50_ms:.1f} / {floor.p99_ms:.1f}",
            f"{ours.p50_ms:.1f} / {ours.p99_ms:.1f}",
            f"{ours.answered}/{ours.sent}",
            f"{ours.cpu_us:.0f}",
        )
    return shown


async def engine(url: str, *, rate: int, seconds: float) -> Figures:
    """The load through classify, gate and premium in a worker process of its own."""
    redis = connect(url)
    await redis.flushall()
    words = [sys.executable, "-m", "tests.bench.hops", url]
    worker = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert worker.stdout is not None
    try:
        assert await asyncio.to_thread(worker.stdout.readline) == "ready\n"
        keys = Keys("bench")
        # The first requests pay for a cold start of the budget, which is not what is measured.
        await _load(url, keys.key("ingest"), keys.key("responses"), rate=rate, seconds=2)
        warm = await _load(url, keys.key("ingest"), keys.key("responses"), rate=rate, seconds=seconds)
    finally:
        worker.terminate()
        rest = await asyncio.to_thread(worker.stdout.read)
        worker.wait()
        await redis.aclose()
    cpu_s = json.loads(rest.strip().splitlines()[-1])["cpu_s"]
    return _figures(warm, cpu_s / (seconds + 2) / rate * 1e6)


async def bare(url: str, *, rate: int, seconds: float) -> Figures:
    """The floor: one hop, no thought, same process."""
    redis = connect(url)
    await redis.flushall()
    echo = Connection(connect(url), Keys("bare"))
    await echo.command("XGROUP", "CREATE", "bare:in", "g", "0", "MKSTREAM")

    async def serve() -> None:
        while True:
            found = await echo.command(
                "XREADGROUP", "GROUP", "g", "c", "COUNT", 100, "BLOCK", 200, "STREAMS", "bare:in", ">"
            )
            for _, entries in found or []:
                for entry_id, fields in entries:
                    await echo.command("XACK", "bare:in", "g", entry_id)
                    await echo.command("XADD", "bare:out", "*", "id", fields[b"id"])

    server = asyncio.create_task(serve())
    try:
        measured = await _load(url, "bare:in", "bare:out", rate=rate, seconds=seconds)
    finally:
        server.cancel()
        await asyncio.wait([server])
        await echo.aclose()
        await redis.aclose()
    return _figures(measured, 0)


async def _load(url: str, ingest: str, responses: str, *, rate: int, seconds: float) -> tuple[int, list[float]]:
    """Send evenly, read what comes back; latencies in ms."""
    send, read = Connection(connect(url), Keys("load")), Connection(connect(url, max_connections=1), Keys("load"))
    sent_at: dict[str, float] = {}
    taken: list[float] = []
    count = round(rate * seconds)
    newest = await send.command("XREVRANGE", responses, "+", "-", "COUNT", 1)
    last = newest[0][0] if newest else b"0"

    async def collect() -> None:
        nonlocal last
        while len(taken) < count:
            reply = await read.command("XREAD", "COUNT", 1000, "BLOCK", 2000, "STREAMS", responses, last)
            if not reply and len(sent_at) == count:
                return
            now = time.perf_counter()
            for _, entries in reply or []:
                for entry_id, fields in entries:
                    last = entry_id
                    taken.append((now - sent_at[fields[b"id"].decode()]) * 1000)

    async with asyncio.TaskGroup() as group:
        group.create_task(collect())
        began = time.perf_counter()
        for index in range(count):
            await asyncio.sleep(max(0.0, began + index / rate - time.perf_counter()))
            request_id = f"{began:.6f}-{index}"
            sent_at[request_id] = time.perf_counter()
            await send.command("XADD", ingest, "*", "id", request_id, "prompt", PROMPT, "task", "analysis")
    await send.aclose()
    await read.aclose()
    return count, taken


def _figures(measured: tuple[int, list[float]], cpu_us: float) -> Figures:
    sent, taken = measured
    cuts = statistics.quantiles(taken, n=100)
    return Figures(sent, len(taken), cuts[49], cuts[98], cpu_us)


if __name__ == "__main__":
    logs.setup(stream=io.StringIO())
    tokens.preload()
    try:
        import uvloop

        uvloop.run(_work(sys.argv[1]))
    except ImportError:
        asyncio.run(_work(sys.argv[1]))
