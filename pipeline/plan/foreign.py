"""Other programs on the same key, whom nothing here controls. Seeded."""

from __future__ import annotations

from random import Random

from pipeline.plan.asked import Cost
from pipeline.sandbox.limits import costs_of
from tokenweir.terms import Allowed

# The mean size where there is no limit of tokens, and the largest share of a limit that one call takes.
_TOKENS, _LARGEST = 500, 1 / 50


class Foreign:
    """Calls at random that take `share` of every limit on average."""

    def __init__(self, allowed: Allowed, *, share: float, seed: int) -> None:
        self._random = Random(f"{seed} foreign")
        requests = allowed.limits.get("rpm")
        tokens = allowed.limits.get("tpm") or allowed.limits.get("itpm") or allowed.limits.get("otpm")
        mean = max(2.0, tokens / requests if tokens and requests else tokens * _LARGEST / 2 if tokens else _TOKENS)
        per_window = share * (requests or (tokens or _TOKENS) / mean)
        self._gap_us = allowed.window_s * 1e6 / per_window
        self._mean = mean

    def gap_us(self) -> int:
        """Until the next call."""
        return max(1, round(self._random.expovariate(1 / self._gap_us)))

    def cost(self) -> Cost:
        """Of one call: anything up to twice the mean."""
        tokens = self._random.randint(1, round(2 * self._mean))
        prompt = max(1, tokens // 2)
        return costs_of(prompt_tokens=prompt, output_tokens=max(0, tokens - prompt))
