"""Gauges of a pool, read from Redis when somebody scrapes: levels, queues, ages.

Every worker can tell them, and all tell the same; queries take the maximum over workers.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from pipeline.metrics import REFUSALS
from pipeline.store.overview import Overview
from tokenweir.keys import GROUPS

# What a pause can be for; all else is `other`.
_PAUSES = ("provider_429", *REFUSALS, "other")


class PoolGauges:
    """A collector that shows the last overview that was read; `show` takes a new one."""

    def __init__(self, pool: str, registry: CollectorRegistry) -> None:
        self._pool = pool
        self._overview: Overview | None = None
        registry.register(self)

    def show(self, overview: Overview | None) -> None:
        """Show this from now on; None = Redis didn't answer, and nothing stale is shown."""
        self._overview = overview

    def collect(self) -> Iterable[Metric]:
        """The families, for the registry."""
        up = GaugeMetricFamily("tokenweir_redis_up", "Whether Redis answered this scrape", labels=["pool"])
        up.add_metric([self._pool], 1.0 if self._overview else 0.0)
        yield up
        if self._overview is None:
            return
        yield from self._budgets(self._overview)
        yield from self._deployments(self._overview)
        yield from self._queues(self._overview)
        alive = GaugeMetricFamily("tokenweir_edge_alive", "Whether the edge model answers", labels=["pool"])
        alive.add_metric([self._pool], float(self._overview.edge_alive))
        yield alive
        drained = GaugeMetricFamily("tokenweir_drained", "Whether operators have drained the pool", labels=["pool"])
        drained.add_metric([self._pool], float(self._overview.closed is not None))
        yield drained

    def _budgets(self, overview: Overview) -> Iterable[Metric]:
        labels = ["pool", "deployment", "limit"]
        ratio = GaugeMetricFamily("tokenweir_bucket_level_ratio", "Level by capacity; below 0 is a debt", labels=labels)
        level = GaugeMetricFamily("tokenweir_bucket_level", "Requests or tokens that may go at once", labels=labels)
        capacity = GaugeMetricFamily("tokenweir_bucket_capacity", "The most that may go at once", labels=labels)
        used = GaugeMetricFamily("tokenweir_limit_used_ratio", "Charged in the rolling window by limit", labels=labels)
        for budget in overview.budgets:
            names = [self._pool, budget.deployment, budget.limit]
            ratio.add_metric(names, budget.level / budget.capacity)
            level.add_metric(names, budget.level)
            capacity.add_metric(names, budget.capacity)
            used.add_metric(names, budget.used / budget.allowed)
        yield from (ratio, level, capacity, used)

    def _deployments(self, overview: Overview) -> Iterable[Metric]:
        labels = ["pool", "deployment"]
        paused = GaugeMetricFamily("tokenweir_deployment_paused", "1 = closed for that", labels=[*labels, "reason"])
        flying = GaugeMetricFamily("tokenweir_deployment_in_flight", "Calls granted and not over", labels=labels)
        factor = GaugeMetricFamily("tokenweir_deployment_rate_factor", "Share of its rate in use", labels=labels)
        refunds = GaugeMetricFamily("tokenweir_settlement_refunds", "1 = unused tokens are taken back", labels=labels)
        for name, standing in overview.deployments.items():
            why = standing.why if standing.why in _PAUSES else "other"
            # Between two probes of a key that was refused it is as closed as before.
            closed = standing.paused_s > 0 or why in REFUSALS
            for reason in _PAUSES:
                paused.add_metric([self._pool, name, reason], float(closed and reason == why))
            flying.add_metric([self._pool, name], standing.in_flight)
            factor.add_metric([self._pool, name], standing.factor)
            refunds.add_metric([self._pool, name], float(standing.refunds))
        yield from (paused, flying, factor, refunds)

    def _queues(self, overview: Overview) -> Iterable[Metric]:
        labels = ["pool", "stage"]
        waiting = GaugeMetricFamily("tokenweir_queue_waiting", "Entries that nobody has taken", labels=labels)
        pending = GaugeMetricFamily("tokenweir_queue_pending", "Entries in hand", labels=labels)
        oldest = GaugeMetricFamily("tokenweir_queue_oldest_seconds", "Age of the oldest entry", labels=labels)
        for stage in dict.fromkeys(GROUPS.values()):
            lanes = [queue for queue in overview.queues if GROUPS[queue.stream] == stage]
            waiting.add_metric([self._pool, stage], sum(lane.waiting for lane in lanes))
            pending.add_metric([self._pool, stage], sum(lane.pending for lane in lanes))
            oldest.add_metric([self._pool, stage], max(lane.oldest_s for lane in lanes))
        backlog = GaugeMetricFamily("tokenweir_backlog_waiting", "Deferred requests", labels=["pool", "class"])
        for name, count in overview.backlog.items():
            backlog.add_metric([self._pool, name], count)
        yield from (waiting, pending, oldest, backlog)
