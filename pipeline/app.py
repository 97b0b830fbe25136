"""The composition root: builds one worker process from a configuration and runs it until it is told to stop.

The only module beside the command line that knows which stages there are.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import structlog

import stages
from pipeline.alarms import Alarms
from pipeline.alive import all_alive
from pipeline.config import Config, secret
from pipeline.gauges import PoolGauges
from pipeline.http.ops import Ops
from pipeline.limits import explain
from pipeline.loop import LoopSettings, StageLoop
from pipeline.metrics import Metrics
from pipeline.stage import Stage
from pipeline.store import Store
from pipeline.store.health import unfit
from pipeline.store.outage import FORBIDDEN_WAIT_S
from pipeline.store.overview import overview
from tokenweir.errors import ConfigError, StoreUnavailable
from tokenweir.keys import Keys

log = structlog.get_logger()

# How often what was heard is passed on, and slots that have changed are told.
_BEAT_S = 0.25
# How stale a reader may be and the process still count as able to claim work.
_READ_WITHIN_S = 10.0


class Worker:
    """One worker process of one pool. Make it after any fork, run it inside a fresh event loop.

    Args:
        url: where Redis is, already resolved (`redis://`, `redis+sentinel://`, ...; docs/redis.md).
        only: names of the stages to run.
        build: makes the stages; another function may add stages of its own.

    Raises:
        ConfigError: no such pool or stage, or a key that isn't set.
    """

    def __init__(
        self,
        config: Config,
        pool_name: str | None,
        *,
        url: str,
        only: Sequence[str] = stages.FLOW,
        build: Callable[..., list[Stage]] = stages.build,
    ) -> None:
        unknown = set(only) - set(stages.FLOW)
        if unknown:
            raise ConfigError(f"no stage {', '.join(sorted(unknown))}; there are: {', '.join(stages.FLOW)}")
        self._config = config
        self._name, self._pool = config.pool(pool_name)
        self._keys = Keys(self._name, prefix=config.redis.prefix)
        self._url = url
        self._only = frozenset(only)
        self._build = build
        deployments = self._pool.deployments
        wanted = deployments if "premium" in self._only else ()
        self._api_keys = {deployment.name: secret(deployment.api_key) for deployment in wanted}
        self._metrics = Metrics(self._name, [deployment.name for deployment in deployments])
        self._stop = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Read nothing new, finish what is in hand, end."""
        self._stop.set()

    async def run(self) -> None:
        """Work until a signal or `stop`. A second signal ends at once; what is in hand stays pending for others.

        Raises:
            ConfigError: Redis refuses this user something that workers do, or a key of the pool holds something else.
        """
        store = Store(self._url, self._keys, self._pool)
        built = self._build(self._pool, self._keys, api_keys=self._api_keys, only=self._only)
        settings = LoopSettings(
            lease_s=self._pool.lease_s,
            drain_s=self._pool.drain_s,
            max_deliveries=self._pool.max_deliveries,
            max_attempts=self._pool.max_attempts,
        )
        self._listen(asyncio.get_running_loop(), asyncio.current_task())
        # Closed in turn, whatever happens: a cancellation in one clean-up leaves out none of the others.
        async with AsyncExitStack() as stack:
            stack.push_async_callback(store.aclose)
            for stage in built:
                stack.push_async_callback(stage.aclose)
            await _admitted(store)
            loops = [StageLoop(stage, store, self._metrics, settings) for stage in built]
            ops = self._ops(store, loops)
            stack.push_async_callback(ops.stop)
            port = await ops.start(self._config.metrics.host, self._config.metrics.port)
            await self._work(store, built, loops, port)

    def _listen(self, loop: asyncio.AbstractEventLoop, main: asyncio.Task[None] | None) -> None:
        """First signal: stop in order. Second: cancel. Further ones would only disturb that."""

        def on_signal() -> None:
            if self._stop.is_set() and main is not None and not main.cancelling():
                main.cancel()
            self._stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)

    async def _work(self, store: Store, built: Sequence[Stage], loops: Sequence[StageLoop], port: int) -> None:
        log.info("worker_started", consumer=store.consumer, stages=[stage.name for stage in built], metrics_port=port)
        async with asyncio.TaskGroup() as group:
            services = [group.create_task(self._beat(store, built)), group.create_task(store.deltas.run())]
            services.append(group.create_task(store.cancelled.run()))
            running = [group.create_task(loop.run(self._stop)) for loop in loops]
            await all_alive([*services, *running], self._stop)
            await asyncio.wait(running)
            for service in services:
                service.cancel()
        await store.deltas.flush()
        await self._bow_out(store)
        log.info("worker_stopped", consumer=store.consumer)

    async def _beat(self, store: Store, built: Sequence[Stage]) -> None:
        """Put limits in place; then pass on what was heard, and offer slots long before they run out."""
        differ = await store.outage.insist(store.gate.seed)
        for deployment in self._pool.deployments:
            for line in explain(deployment):
                log.info("limit_resolved", pool=self._name, figures=line)
            if deployment.name in differ:
                log.warning(
                    "other_limits_in_force",
                    deployment=deployment.name,
                    reason="they were set live, or by a worker with another configuration",
                    cure="tokenweir limits show; tokenweir limits reset puts this file's in force",
                )
        ttl_ms = round(max(5.0, self._pool.lease_s / 2) * 1000)
        alarms, offered, at = Alarms(self._metrics), (-2, -2), 0.0
        while True:
            try:
                # What we know of the budgets comes first: after a fail-over they may have lost it.
                alarms.tell(await store.gate.report())
                # One that stops has no slots: what is granted for them would have to be given back.
                slots = (-1, 0) if self._stop.is_set() else (_slots(built, "premium"), _slots(built, "edge"))
                if slots != offered or time.monotonic() - at >= ttl_ms / 4000:
                    now_ms = await store.gate.beat(premium_slots=slots[0], edge_slots=slots[1], ttl_ms=ttl_ms)
                    store.learn_time(now_ms)
                    await store.streams.expire(now_ms=now_ms)
                    offered, at = slots, time.monotonic()
                store.outage.over(self)
            except StoreUnavailable as error:
                store.outage.failed(error, self)
                if error.forbidden:
                    await asyncio.sleep(FORBIDDEN_WAIT_S)
            self._metrics.outages_lasted(store.outage.seconds_total)
            # No slower in an outage: what a fail-over lost is to be told within the second for which the gate waits.
            await asyncio.sleep(_BEAT_S)

    async def _bow_out(self, store: Store) -> None:
        try:
            await store.gate.beat(premium_slots=-1, edge_slots=0, ttl_ms=1)
        except StoreUnavailable as error:
            log.warning("slots_not_withdrawn", reason=str(error), effect="they run out by themselves")

    def _ops(self, store: Store, loops: Sequence[StageLoop]) -> Ops:
        gauges = PoolGauges(self._name, self._metrics.registry)

        async def refresh() -> None:
            try:
                gauges.show(await overview(store.control))
            except StoreUnavailable:
                gauges.show(None)

        def ready() -> str:
            if self._stop.is_set():
                return "stopping"
            if not store.outage.serving:
                return "Redis doesn't answer or refuses"
            if any(time.monotonic() - loop.last_read > _READ_WITHIN_S and not loop.full for loop in loops):
                return "a stage hasn't been able to read for a while"
            return ""

        return Ops(self._metrics.registry, refresh=refresh, ready=ready)


async def _admitted(store: Store) -> None:
    """Refuse to start where Redis would refuse the work; that it isn't there, or not ready, is waited for."""
    try:
        found = await unfit(store.control, "worker")
    except StoreUnavailable as error:
        if not error.forbidden:
            return
        raise ConfigError(f"Redis refuses this worker: {error}; look at the user and password in its URL") from error
    if grave := [finding for finding in found if finding.mark == "FAIL"]:
        raise ConfigError("; ".join(f"{finding.text} -> {finding.cure}" for finding in grave))
    for finding in found:
        log.warning("rights_missing", reason=finding.text, cure=finding.cure)


def _slots(built: Sequence[Stage], name: str) -> int:
    """What a stage offers now."""
    return sum(stage.concurrency for stage in built if stage.name == name and stage.ready)
