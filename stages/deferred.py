"""deferred: serves the backlog when something has changed.

Its stream carries notices, not requests: newly deferred work, a freed budget or slot, a retry, a due time.
The group hands each notice to one process, so there is no herd; the drain script moves what fits, and says
for how long one process should wait when nothing else happens. So nobody polls.
"""

from __future__ import annotations

import asyncio

from pipeline.outcome import Drain, Outcome
from pipeline.stage import Delivery


class Deferred:
    """Turns every notice into a drain of the backlog; the loop makes one of those that come together."""

    name = "deferred"
    lanes: tuple[str, ...] = ("deferred",)
    concurrency = 100
    calls = False
    longest_s = 0.0
    ready = True

    async def handle(self, delivery: Delivery) -> Outcome:
        """Whatever the notice says: what can be served now is the script's to find out."""
        return Drain()

    async def run(self, stop: asyncio.Event) -> None:
        """Nothing to do beside notices."""

    async def aclose(self) -> None:
        """Nothing was opened."""
