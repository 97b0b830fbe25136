"""Everything the sandbox remembers: one object, so that a reset can't forget a part of it."""

import time
from collections.abc import Callable, Mapping
from random import Random

from pipeline.sandbox.calls import CallLog
from pipeline.sandbox.faults import Faults
from pipeline.sandbox.ledger import Ledger
from pipeline.sandbox.limits import Dimension, Limits, Verdict
from pipeline.sandbox.settings import SandboxSettings


class State:
    """Limits, books, faults and dice of one sandbox.

    The clock is the system's monotonic one, which on Linux all processes share: a test may compare the sandbox's times
    with its own `time.monotonic()`.
    """

    def __init__(self, settings: SandboxSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.clock = clock
        self._premium_latency = settings.premium_latency()
        self._edge_latency = settings.edge_latency()
        self.reset()

    def reset(self) -> None:
        """As just started: empty budgets' use, empty books, no faults, dice thrown from the seed again."""
        settings = self.settings
        self.started_s = self.clock()
        limits: dict[Dimension, int] = {"rpm": settings.rpm, "tpm": settings.tpm}
        self.limits = Limits(settings.enforcement, limits, settings.window_s, seed=settings.seed)
        self.ledger = Ledger(requests=settings.rpm, tokens=settings.tpm, window_s=settings.window_s)
        self.refusals: dict[str, int] = {}
        self.calls = CallLog()
        self.faults = Faults()
        self.edge_loaded = settings.edge_load_s == 0
        self._premium_dice = Random(settings.seed)
        self._edge_dice = Random(settings.seed + 1)

    def charge(self, costs: Mapping[Dimension, int], now: float) -> Verdict:
        """Decide over a premium call and enter it in the ledger."""
        verdict = self.limits.charge(costs, now)
        self.ledger.record(now, costs["tpm"], admitted=verdict.admitted)
        if verdict.short is not None:
            reason = "too_large" if verdict.wait_s == float("inf") else verdict.short
            self.refusals[reason] = self.refusals.get(reason, 0) + 1
        return verdict

    def premium_times(self, tokens: int) -> tuple[float, float]:
        """Seconds to the first token and from there to the last, for an answer of `tokens` (its longest choice)."""
        first = self._premium_latency.draw(self._premium_dice)
        scale = self.settings.time_scale
        return first / scale, tokens / self.settings.tokens_per_second / scale

    def edge_time(self) -> float:
        """Seconds of a whole edge call."""
        return self._edge_latency.draw(self._edge_dice) / self.settings.time_scale
