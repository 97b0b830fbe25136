"""What a worker counts: named as documented, there from the start, with labels from closed sets."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client import generate_latest

from pipeline.message import Request
from pipeline.metrics import REFUSALS, Fallback, Metrics
from pipeline.outcome import Failure
from tokenweir.wire import Result, Usage

REQUEST = Request(id="a", body=msgspec.Raw(b"{}"), prompt_tokens=60, output_tokens=40)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("main", ["primary"])


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"tokenweir_{name}", labels)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("gate_decisions_total", {"pool": "main", "class": "batch", "decision": "deferred", "reason": ""}),
        ("gate_decisions_total", {"pool": "main", "class": "interactive", "decision": "rejected", "reason": "expired"}),
        ("requests_total", {"pool": "main", "route": "edge", "status": "ok", "code": ""}),
        ("request_seconds_count", {"pool": "main", "route": "premium", "class": "standard"}),
        ("time_to_first_token_seconds_count", {"pool": "main", "route": "premium"}),
        ("provider_429_total", {"pool": "main", "deployment": "primary"}),
        ("provider_refused_total", {"pool": "main", "deployment": "primary", "reason": "key_refused"}),
        ("gate_alarms_total", {"pool": "main", "deployment": "primary", "kind": "limit_lower"}),
        ("provider_calls_total", {"pool": "main", "deployment": "primary", "outcome": "given_back"}),
        ("tokens_total", {"pool": "main", "kind": "prompt", "state": "reserved"}),
        ("fallback_ratio", {"pool": "main"}),
        ("reclaimed_total", {"stage": "premium"}),
        ("redis_outage_seconds_total", {}),
    ],
)
def test_every_series_is_there_from_the_start(metrics: Metrics, name: str, labels: dict[str, str]) -> None:
    """The first incident shows as a rise from zero, not as a series that wasn't there."""
    assert value(metrics, name, **labels) == 0


def test_one_request_is_counted_once_in_each(metrics: Metrics) -> None:
    """Decision, call, tokens and result of a request each show up where an operator looks for them."""
    usage = Usage(prompt_tokens=50, completion_tokens=7, total_tokens=57)
    result = Result(id="a", status="ok", route="premium", usage=usage, waited_ms=5, ttft_ms=900, total_ms=2600)

    metrics.decided(REQUEST, "premium")
    metrics.started("primary", "started", REQUEST)
    metrics.answered(result, "interactive")

    decided = {"pool": "main", "class": "interactive", "decision": "premium", "reason": ""}
    assert value(metrics, "gate_decisions_total", **decided) == 1
    assert value(metrics, "tokens_total", pool="main", kind="completion", state="reserved") == 40
    assert value(metrics, "tokens_total", pool="main", kind="completion", state="used") == 7
    seconds = {"pool": "main", "route": "premium", "class": "interactive"}
    assert value(metrics, "request_seconds_bucket", le="2.5", **seconds) == 0
    assert value(metrics, "request_seconds_bucket", le="3.5", **seconds) == 1
    assert value(metrics, "fallback_ratio", pool="main") == 0


@pytest.mark.parametrize(
    ("reason", "limited", "counted"),
    [
        ("provider_429", True, "provider_429_total"),
        ("key_refused", False, "provider_refused_total"),
        ("quota_exhausted", False, "provider_refused_total"),
        ("provider_500", False, ""),
    ],
)
def test_a_refused_key_is_no_429(metrics: Metrics, reason: str, limited: bool, counted: str) -> None:
    """429s, refused keys and broken providers call for different people: each is counted by itself."""
    metrics.failed("primary", Failure(reason, 60, limited))

    labels = {"pool": "main", "deployment": "primary"}
    assert value(metrics, "provider_calls_total", **labels, outcome="failed") == 1
    assert value(metrics, "provider_429_total", **labels) == (counted == "provider_429_total")
    refused = [value(metrics, "provider_refused_total", **labels, reason=word) for word in REFUSALS]
    assert refused == [float(bool(counted) and word == reason) for word in REFUSALS]


def test_ids_and_models_of_requests_make_no_series(metrics: Metrics) -> None:
    """However many ids and models come by, the scrape stays as long as it was."""
    before = len(generate_latest(metrics.registry).splitlines())

    for index in range(500):
        result = Result(id=f"r{index}", status="ok", route="edge", model=f"m{index}", ttft_ms=index, total_ms=index)
        metrics.answered(result, "batch")

    assert len(generate_latest(metrics.registry).splitlines()) == before


def test_the_fallback_ratio_forgets_after_five_minutes() -> None:
    """The edge's share is of recent answers: what is older than five minutes doesn't count."""
    fallback = Fallback()
    fallback.add(0, edge=True)
    for second in (280, 281, 282):
        fallback.add(second, edge=second == 281)

    assert fallback.ratio(282) == 0.5
    assert fallback.ratio(311) == pytest.approx(1 / 3)
    assert fallback.ratio(1000) == 0


def test_outages_add_up(metrics: Metrics) -> None:
    """The counter holds the length of all outages, however often it is told."""
    for total in (0, 2.5, 2.5, 4):
        metrics.outages_lasted(total)

    assert value(metrics, "redis_outage_seconds_total") == 4
