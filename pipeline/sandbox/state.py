"""Everything the sandbox remembers: one object, so that a reset can't forget a part of it."""

import time
from collections.abc import Callable
from random import Random

from pipeline.sandbox.account import Account
from pipeline.sandbox.calls import CallLog
from pipeline.sandbox.faults import Faults
from pipeline.sandbox.settings import SandboxSettings


class State:
    """Account, calls, faults and dice of one sandbox.

    The clock is the system's monotonic one, which on Linux all processes share: a test may compare the sandbox's times
    with its own `time.monotonic()`.
    """

    def __init__(self, settings: SandboxSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._at_start = settings
        self.clock = clock
        self._premium_latency = settings.premium_latency()
        self._edge_latency = settings.edge_latency()
        self.reset()

    def reset(self) -> None:
        """As just started: its settings, fresh budgets, empty books, no faults, dice thrown from the seed again."""
        settings = self.settings = self._at_start
        self.started_s = self.clock()
        self.account = Account(settings, self.started_s)
        self.calls = CallLog(self.clock)
        self.faults = Faults()
        self.edge_loaded = settings.edge_load_s == 0
        self._premium_dice = Random(settings.seed)
        self._edge_dice = Random(settings.seed + 1)

    def change(self, settings: SandboxSettings) -> None:
        """Go by other settings from now on; a reset returns to those of the start."""
        self.account.change(settings, self.clock())
        self.settings = settings

    def premium_times(self, tokens: int) -> tuple[float, float]:
        """Seconds to the first token and from there to the last, for an answer of `tokens` (its longest choice)."""
        first = self._premium_latency.draw(self._premium_dice)
        scale = self.settings.time_scale
        return first / scale, tokens / self.settings.tokens_per_second / scale

    def edge_time(self) -> float:
        """Seconds of a whole edge call."""
        return self._edge_latency.draw(self._edge_dice) / self.settings.time_scale
