"""What operators are told when a provider's headers and our limits don't agree: one line a minute at most."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from pipeline.metrics import Metrics
from pipeline.store.gate import Alarm

log = structlog.get_logger()

_QUIET_S = 60.0


class Alarms:
    """Counts every alarm, and logs each deployment's, limit's and kind's at most once a minute."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._said: dict[Alarm, float] = {}

    def tell(self, alarms: Iterable[Alarm]) -> None:
        """Take what a report brought to light."""
        for alarm in alarms:
            self._metrics.alarmed(alarm.deployment, alarm.kind)
            now_s = self._clock()
            if now_s - self._said.get(alarm, -_QUIET_S) >= _QUIET_S:
                self._said[alarm] = now_s
                _say(alarm)


def _say(alarm: Alarm) -> None:
    about: dict[str, Any] = {"deployment": alarm.deployment, "limit": alarm.limit}
    match alarm.kind:
        case "limit_lower":
            log.error(
                "limit_lower",
                **about,
                meaning="the provider's headers state a lower limit than is set here; the smaller one is used",
                cure=f"tokenweir limits set {alarm.deployment} {alarm.limit}=<what it states>",
            )
        case "foreign_use":
            log.warning(
                "foreign_use",
                **about,
                meaning="the provider has less left than was charged here: something else spends from this key",
                cure="give tokenweir a key of its own, or set its limits to its share of this one",
            )
        case "refunds_proven":
            log.info(
                "refunds_proven", **about, meaning="the provider gives unused tokens back; they are used from now on"
            )
        case "refunds_contradicted":
            log.warning(
                "refunds_contradicted",
                **about,
                meaning="the provider doesn't give unused tokens back after all; they stay charged from now on",
            )
        case kind:
            log.warning("gate_alarm", kind=kind, **about)  # from a newer script than this worker knows
