"""Gauges of a pool: what a scrape shows of its deployments, and that nothing stale is shown."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from pipeline.gauges import PoolGauges
from pipeline.store.overview import Closing, Level, Overview, Queue, Standing
from tokenweir.keys import GROUPS


def seen(**standings: Standing) -> Overview:
    return Overview(
        queues=[Queue(lane, 0, 0, 0.0, 0) for lane in GROUPS],
        backlog={},
        due_later=0,
        budgets=[Level(name, "rpm", 10, 50, 25, 500) for name in standings],
        deployments=standings,
        workers=1,
        premium_slots=1,
        edge_slots=0,
        edge_alive=False,
        dead=0,
        responses=0,
        limits_version=1,
    )


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"tokenweir_{name}", {"pool": "main", **labels})


@pytest.mark.parametrize(
    ("why", "shown"),
    [("provider_429", "provider_429"), ("key_refused", "key_refused"), ("a word of tomorrow", "other")],
)
def test_a_pause_is_shown_with_its_reason(why: str, shown: str) -> None:
    """Each reason has a series from the start, and only that of the present pause is 1."""
    registry = CollectorRegistry()
    gauges = PoolGauges("main", registry)
    gauges.show(seen(primary=Standing(59, why, 3, 0.7, True), spare=Standing(0, "", 0, 1, False)))

    reasons = ("provider_429", "quota_exhausted", "key_refused", "other")
    paused = {name: value(registry, "deployment_paused", deployment="primary", reason=name) for name in reasons}

    assert paused == {name: float(name == shown) for name in reasons}
    assert [value(registry, "deployment_paused", deployment="spare", reason=name) for name in reasons] == [0] * 4


@pytest.mark.parametrize(("why", "closed"), [("provider_429", 0), ("key_refused", 1), ("quota_exhausted", 1)])
def test_a_pause_that_waits_for_its_probe(why: str, closed: float) -> None:
    """A key that was refused is shown as closed until a probe went well; a 429 is over when its time is over."""
    registry = CollectorRegistry()
    PoolGauges("main", registry).show(seen(primary=Standing(0, why, 0, 1, False)))

    assert value(registry, "deployment_paused", deployment="primary", reason=why) == closed


def test_a_deployment_is_shown_as_it_stands() -> None:
    """Calls in flight, a narrowed rate and refunds are there for each deployment."""
    registry = CollectorRegistry()
    gauges = PoolGauges("main", registry)
    gauges.show(seen(primary=Standing(0, "", 3, 0.7, True)))

    assert value(registry, "deployment_in_flight", deployment="primary") == 3
    assert value(registry, "deployment_rate_factor", deployment="primary") == 0.7
    assert value(registry, "settlement_refunds", deployment="primary") == 1


def test_nothing_stale_is_shown() -> None:
    """While Redis is away a scrape says so, and no old level passes for a present one."""
    registry = CollectorRegistry()
    gauges = PoolGauges("main", registry)
    gauges.show(seen(primary=Standing(0, "", 3, 1, True)))
    gauges.show(None)

    assert value(registry, "redis_up") == 0
    assert value(registry, "deployment_in_flight", deployment="primary") is None


def test_a_drained_pool_can_be_alarmed_on() -> None:
    """Whether the pool takes nothing in is there from the start, and 1 as long as it is drained."""
    registry = CollectorRegistry()
    gauges = PoolGauges("main", registry)
    gauges.show(seen())
    open_ = value(registry, "drained")
    gauges.show(msgspec.structs.replace(seen(), closed=Closing(1.0, "ops@desk")))

    assert (open_, value(registry, "drained")) == (0, 1)
