"""One request of a simulation, from its arrival to its end. Plain data."""

from __future__ import annotations

from typing import Final

import msgspec

from pipeline.priority import GIVES_WAY_WINDOWS
from pipeline.sandbox.limits import Dimension, costs_of

Cost = dict[Dimension, int]
CLASSES: Final = ("interactive", "standard", "batch")


class Asked(msgspec.Struct, kw_only=True, eq=False):
    """What is asked for, and what has become of it.

    Attributes:
        at_us: when it came. output: tokens reserved for the answer. used: tokens that the answer will really have.
        granted_us: of the present attempt. deployment: that took it.
        waiting: stands in the backlog; an index that still names it otherwise has to drop it.
        deferred: stood or stands there.
    """

    at_us: int
    prompt: int
    output: int
    used: int
    rank: int = 0
    tenant: str = "default"
    simple: bool = False
    attempt: int = 1
    granted_us: int = 0
    sent_us: int = 0
    deployment: int = 0
    waiting: bool = False
    deferred: bool = False

    def score(self, window_s: float) -> float:
        """Its place in the backlog, in milliseconds: pipeline.priority.score, for a request of this kind."""
        return self.at_us // 1000 + GIVES_WAY_WINDOWS[self.rank] * window_s * 1000

    @property
    def cost(self) -> Cost:
        """What a provider charges for it."""
        return costs_of(prompt_tokens=self.prompt, output_tokens=self.output)

    @property
    def unused(self) -> Cost:
        """What of it a provider may give back once the answer's length is known."""
        tokens = max(0, self.output - self.used)
        return {"rpm": 0, "rpd": 0, "tpm": tokens, "tpd": tokens, "itpm": 0, "otpm": tokens, "max_in_flight": 0}
