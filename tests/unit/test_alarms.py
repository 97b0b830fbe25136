"""Alarms about limits: every one is counted, and one line a minute is said."""

from __future__ import annotations

import pytest
import structlog

from pipeline.alarms import Alarms
from pipeline.metrics import ALARMS, Metrics
from pipeline.store.gate import Alarm

LEVELS = {
    "limit_lower": "error",
    "foreign_use": "warning",
    "refunds_proven": "info",
    "refunds_contradicted": "warning",
}


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("kind", ALARMS)
def test_an_alarm_is_a_line_a_minute(kind: str) -> None:
    """An alarm that comes four times a second is said once a minute, and counted every time."""
    metrics, clock = Metrics("main", ["primary"]), Clock()
    alarms = Alarms(metrics, clock)
    with structlog.testing.capture_logs() as logs:
        for tick in range(480):
            clock.now_s = 1000 + tick / 4
            alarms.tell([Alarm("primary", "rpm", kind)])

    labels = {"pool": "main", "deployment": "primary", "kind": kind}
    assert [(line["event"], line["log_level"]) for line in logs] == [(kind, LEVELS[kind])] * 2
    assert metrics.registry.get_sample_value("tokenweir_gate_alarms_total", labels) == 480


def test_alarms_of_others_are_said_too() -> None:
    """One loud limit hides neither another limit, nor another deployment, nor another kind."""
    different = [
        Alarm("primary", "rpm", "limit_lower"),
        Alarm("primary", "tpm", "limit_lower"),
        Alarm("spare", "rpm", "limit_lower"),
        Alarm("primary", "rpm", "foreign_use"),
    ]
    alarms = Alarms(Metrics("main", ["primary", "spare"]), Clock())
    with structlog.testing.capture_logs() as logs:
        alarms.tell(different * 3)

    assert [Alarm(line["deployment"], line["limit"], line["event"]) for line in logs] == different


def test_a_lower_limit_names_its_cure() -> None:
    """Whoever reads the line at night can copy the command that ends it."""
    with structlog.testing.capture_logs() as logs:
        Alarms(Metrics("main", ["primary"])).tell([Alarm("primary", "tpm", "limit_lower")])

    assert logs[0]["cure"].startswith("tokenweir limits set primary tpm=")
