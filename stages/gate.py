"""gate: says what a request costs; the gate script decides what becomes of it."""

from __future__ import annotations

import asyncio

from pipeline.outcome import Admit, Outcome
from pipeline.stage import Delivery
from tokenweir.keys import GATE_LANES


class GateStage:
    """Never waits and never spends: charging and handing over are one script, so they can't disagree.

    The loop asks that script for a whole batch at once, in rank order of the lanes.
    """

    name = "gate"
    lanes: tuple[str, ...] = GATE_LANES
    # What stands before an interactive entry in a flood of batch work. Measured with 10,000 in front on two busy
    # cores: at 100 it waits 590 ms, at 32 75 ms, and the flood is as quick; at 16 the flood takes four times as long.
    concurrency = 32
    calls = False
    longest_s = 0.0
    ready = True

    async def handle(self, delivery: Delivery) -> Outcome:
        """The request with its costs, for the gate script."""
        return Admit(request=delivery.request)

    async def run(self, stop: asyncio.Event) -> None:
        """Nothing to do beside deliveries."""

    async def aclose(self) -> None:
        """Nothing was opened."""
