"""What a worker counts, for Prometheus. All metrics of the project are defined here.

Base units; labels from closed sets only, never ids, tenants or a requested model's name; every series
exists from the start at zero, so that the first incident shows as a rise.

| metric | a rise means |
|---|---|
| tokenweir_gate_decisions_total{pool,class,decision,reason} | traffic; `deferred` = no budget, and no edge for it |
| tokenweir_requests_total{pool,route,status,code} | terminal results |
| tokenweir_request_seconds, _time_to_first_token_seconds | from ingest, as a caller sees it |
| tokenweir_stage_seconds{stage} | time in a stage's own code |
| tokenweir_provider_calls_total{pool,deployment,outcome} | `started` = paid calls; `given_back` = slow workers |
| tokenweir_provider_429_total{pool,deployment} | an incident: the limits are wrong or somebody else uses the key |
| tokenweir_provider_refused_total{pool,deployment,reason} | a person is needed: the key is refused, the quota used up |
| tokenweir_gate_alarms_total{pool,deployment,kind} | the provider's headers and our limits don't agree |
| tokenweir_tokens_total{pool,kind,state} | `reserved` for started calls; `used` as models counted them; `refunded` |
| tokenweir_fallback_ratio{pool} | the edge's share of what this worker answered in the last 5 min |
| tokenweir_backlog_served_total{pool,route} | waiting requests that got their turn |
| tokenweir_last_read_timestamp_seconds{stage} | it must rise: when Redis last answered a read |
| tokenweir_reclaimed_total{stage}, _lost_entries_total | workers died or hung; bodies were deleted by hand |
| tokenweir_dead_total{stage,reason} | requests that need a person |
| tokenweir_groups_made_total | somebody deleted a stream or group, or Redis lost its data |
| tokenweir_redis_outage_seconds_total | Redis was away |
| tokenweir_bucket_level_ratio, _deployment_paused and their like | gauges, read when scraped (pipeline.gauges) |

The outcome of a call is `closed` where its request was cancelled, or its deadline passed, while it ran: paid in vain.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pipeline.message import Request
from pipeline.outcome import Failure
from tokenweir import __version__
from tokenweir.keys import CLASSES
from tokenweir.wire import Class, Result

# Around our targets (0.3 s edge, 2.5 s premium) and out to two minutes: a quantile must not stick at an edge.
SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 2.5, 3.5, 5, 7.5, 10, 15, 20, 30, 47, 60, 90, 120)
STAGE_SECONDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
# What the gate answers. Those for good are `rejected`, each for its reason.
DECISIONS = ("premium", "edge", "deferred", "too_large", "expired", "queue_full")
# For these a deployment is out until a person acts.
REFUSALS = ("quota_exhausted", "key_refused")
# Calls that we ended ourselves; no fault of the provider's.
CLOSED = ("cancelled", "deadline_exceeded")
ALARMS = ("limit_lower", "foreign_use", "refunds_proven", "refunds_contradicted")
ROUTES = ("premium", "edge", "none")
STAGES = ("classify", "gate", "premium", "edge", "deferred")
CODES = (
    "", "invalid_request", "too_large_for_limit", "queue_full", "deadline_exceeded", "cancelled", "provider_rejected",
    "provider_unavailable", "quota_exhausted", "content_filter", "dead_letter", "internal",
)  # fmt: skip


class Metrics:
    """The counters of one process, on a registry of its own."""

    def __init__(self, pool: str, deployments: Sequence[str]) -> None:
        self.registry = CollectorRegistry()
        self._pool = pool
        counter, histogram = self._counter, self._histogram
        self._decisions = counter("gate_decisions", "Gate decisions", ("pool", "class", "decision", "reason"))
        self._requests = counter("requests", "Terminal results", ("pool", "route", "status", "code"))
        self._seconds = histogram("request_seconds", "From ingest to the result", ("pool", "route", "class"), SECONDS)
        self._ttft = histogram(
            "time_to_first_token_seconds", "From ingest to the first token", ("pool", "route"), SECONDS
        )
        self._stage = histogram("stage_seconds", "In a stage's own code", ("stage",), STAGE_SECONDS)
        self._calls = counter("provider_calls", "What became of granted calls", ("pool", "deployment", "outcome"))
        self._limited = counter("provider_429", "Answers of 429 by the provider", ("pool", "deployment"))
        self._refused = counter(
            "provider_refused", "Calls refused for our key or quota", ("pool", "deployment", "reason")
        )
        self._alarms = counter("gate_alarms", "Headers that disagree with us", ("pool", "deployment", "kind"))
        self._tokens = counter("tokens", "Tokens reserved for calls, and used", ("pool", "kind", "state"))
        self._served = counter("backlog_served", "Requests that left the backlog", ("pool", "route"))
        self._last_read = Gauge(
            "tokenweir_last_read_timestamp_seconds",
            "When Redis last answered a read",
            ("stage",),
            registry=self.registry,
        )
        self._reclaimed = counter("reclaimed", "Entries taken over from lost workers", ("stage",))
        self._lost = counter("lost_entries", "Pending entries whose body was deleted", ("stage",))
        self._dead = counter("dead", "Dead letters", ("stage", "reason"))
        self._groups = counter("groups_made", "Consumer groups that were missing and made", ())
        self._outage = counter("redis_outage_seconds", "Seconds of Redis outages that ended", ())
        self._outage_s = 0.0
        self._fallback = Fallback()
        ratio = self._gauge("fallback_ratio", "Share of the edge in the answers of the last 5 min", ("pool",))
        ratio.labels(pool).set_function(lambda: self._fallback.ratio(time.monotonic()))
        self._gauge("build_info", "Version of the worker", ("version",)).labels(__version__).set(1)
        self._zero(deployments)

    def _zero(self, deployments: Sequence[str]) -> None:
        """Make every series exist."""
        for name in CLASSES:
            for decision in DECISIONS:
                self._decisions.labels(self._pool, name, *_answer(decision))
            for route in ROUTES:
                self._seconds.labels(self._pool, route, name)
        for route in ROUTES:
            self._requests.labels(self._pool, route, "ok", "")
            self._ttft.labels(self._pool, route)
        for code in CODES[1:]:
            self._requests.labels(self._pool, "none", "error", code)
        for stage in STAGES:
            self._stage.labels(stage)
            self._reclaimed.labels(stage)
            self._lost.labels(stage)
            self._dead.labels(stage, "deliveries")
        for deployment in deployments:
            self._limited.labels(self._pool, deployment)
            for reason in REFUSALS:
                self._refused.labels(self._pool, deployment, reason)
            for kind in ALARMS:
                self._alarms.labels(self._pool, deployment, kind)
            for outcome in ("started", "given_back", "failed", "closed"):
                self._calls.labels(self._pool, deployment, outcome)
        for kind in ("prompt", "completion"):
            for state in ("reserved", "used", "refunded"):
                self._tokens.labels(self._pool, kind, state)
        for route in ("premium", "edge"):
            self._served.labels(self._pool, route)

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Counter:
        return Counter(f"tokenweir_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: Sequence[str]) -> Gauge:
        return Gauge(f"tokenweir_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        return Histogram(f"tokenweir_{name}", text, labels, registry=self.registry, buckets=buckets)

    def decided(self, request: Request, decision: str) -> None:
        """The gate decided on a request."""
        if decision in DECISIONS:
            self._decisions.labels(self._pool, request.priority, *_answer(decision)).inc()

    def started(self, deployment: str, answer: str, request: Request) -> None:
        """A granted call was started, or given back."""
        if answer != "gone":
            self._calls.labels(self._pool, deployment, answer).inc()
        if answer == "started":
            self._tokens.labels(self._pool, "prompt", "reserved").inc(request.prompt_tokens)
            self._tokens.labels(self._pool, "completion", "reserved").inc(request.output_tokens)

    def failed(self, deployment: str, failure: Failure) -> None:
        """A call brought no answer."""
        closed = failure.reason in CLOSED
        self._calls.labels(self._pool, deployment, "closed" if closed else "failed").inc()
        if failure.limited:
            self._limited.labels(self._pool, deployment).inc()
        elif failure.reason in REFUSALS:
            self._refused.labels(self._pool, deployment, failure.reason).inc()

    def refunded(self, prompt: int, completion: int) -> None:
        """A call used less than was reserved for it, and its grant got that back."""
        self._tokens.labels(self._pool, "prompt", "refunded").inc(prompt)
        self._tokens.labels(self._pool, "completion", "refunded").inc(completion)

    def alarmed(self, deployment: str, kind: str) -> None:
        """A provider's headers said something that an operator should know."""
        if kind in ALARMS:
            self._alarms.labels(self._pool, deployment, kind).inc()

    def answered(self, result: Result, priority: Class) -> None:
        """A terminal result was written."""
        self._requests.labels(self._pool, result.route, result.status, result.code).inc()
        if result.total_ms >= 0:
            self._seconds.labels(self._pool, result.route, priority).observe(result.total_ms / 1000)
        if result.ttft_ms >= 0:
            self._ttft.labels(self._pool, result.route).observe(result.ttft_ms / 1000)
        self._tokens.labels(self._pool, "prompt", "used").inc(result.usage.prompt_tokens)
        self._tokens.labels(self._pool, "completion", "used").inc(result.usage.completion_tokens)

        if result.ok:
            self._fallback.add(time.monotonic(), edge=result.route == "edge")

    def outages_lasted(self, seconds_total: float) -> None:
        """All outages of Redis that ended so far lasted so long together."""
        self._outage.inc(seconds_total - self._outage_s)
        self._outage_s = seconds_total

    def decided_in(self, stage: str, seconds: float) -> None:
        """A stage took so long to decide."""
        self._stage.labels(stage).observe(seconds)

    def drained(self, premium: int, edge: int) -> None:
        """So many left the backlog."""
        self._served.labels(self._pool, "premium").inc(premium)
        self._served.labels(self._pool, "edge").inc(edge)

    def was_read(self, stage: str) -> None:
        """Redis answered a read, with entries or without."""
        self._last_read.labels(stage).set_to_current_time()

    def reclaimed(self, stage: str, taken: int, lost: int) -> None:
        """Entries were taken over; some had no body any more."""
        self._reclaimed.labels(stage).inc(taken)
        self._lost.labels(stage).inc(lost)

    def buried(self, stage: str, reason: str) -> None:
        """A dead letter was written."""
        self._dead.labels(stage, reason).inc()

    def groups_made(self, count: int) -> None:
        """Missing groups were made."""
        self._groups.inc(count)


class Fallback:
    """The edge's share of recent answers, counted in slices so that memory stays small."""

    _SLICE_S, _KEPT_S = 10.0, 300.0

    def __init__(self) -> None:
        self._slices: deque[tuple[float, int, int]] = deque()  # began, answers of the edge, all answers

    def add(self, now_s: float, *, edge: bool) -> None:
        """Count an answer."""
        if not self._slices or now_s - self._slices[-1][0] >= self._SLICE_S:
            self._slices.append((now_s, 0, 0))
        began, of_edge, count = self._slices[-1]
        self._slices[-1] = (began, of_edge + edge, count + 1)
        self._forget(now_s)

    def ratio(self, now_s: float) -> float:
        """Between 0 and 1; 0 when nothing was answered."""
        self._forget(now_s)
        count = sum(slice_[2] for slice_ in self._slices)
        return sum(slice_[1] for slice_ in self._slices) / count if count else 0.0

    def _forget(self, now_s: float) -> None:
        while self._slices and now_s - self._slices[0][0] > self._KEPT_S:
            self._slices.popleft()


def _answer(decision: str) -> tuple[str, str]:
    """Decision and reason, as their labels have them."""
    return (decision, "") if decision in ("premium", "edge", "deferred") else ("rejected", decision)
