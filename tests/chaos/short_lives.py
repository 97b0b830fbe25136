"""Many worker processes with short lives: forked, with a real stage loop each, and nothing else of a worker.

`die` starts COUNT of them, a few at a time: each kills itself (kill -9) as soon as it has read one request.
`hold` starts COUNT at once: each takes one request, says `<pid> <entry>`, renews its lease, and never finishes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

from pipeline.config import Edge, Pool
from pipeline.loop import LoopSettings, StageLoop
from pipeline.metrics import Metrics
from pipeline.outcome import Outcome
from pipeline.stage import Delivery
from pipeline.store import Store
from tokenweir.keys import GROUPS, Keys

AT_ONCE = 8


class OneRequest:
    """Takes one request, and dies or keeps it."""

    calls = False
    ready = True
    concurrency = 1
    longest_s = 3600.0

    def __init__(self, lane: str, *, dies: bool) -> None:
        self.name = GROUPS[lane]
        self.lanes: tuple[str, ...] = (lane,)
        self._dies = dies

    async def handle(self, delivery: Delivery) -> Outcome:
        if self._dies:
            os.kill(os.getpid(), signal.SIGKILL)
        sys.stdout.write(f"{os.getpid()} {delivery.entry_id}\n")
        sys.stdout.flush()
        return await asyncio.Future()

    async def run(self, stop: asyncio.Event) -> None:
        """Nothing to do beside deliveries."""

    async def aclose(self) -> None:
        """Nothing was opened."""


async def _work(args: argparse.Namespace) -> None:
    store = Store(args.url, Keys(args.pool), Pool(edge=Edge()))
    settings = LoopSettings(lease_s=args.lease_s, drain_s=1, max_deliveries=3, max_attempts=3)
    stage = OneRequest(args.lane, dies=args.what == "die")
    await StageLoop(stage, store, Metrics("main", []), settings).run(asyncio.Event())


def main() -> int:
    """Fork, and wait until all have ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("die", "hold"))
    parser.add_argument("url")
    parser.add_argument("pool")
    parser.add_argument("lane")
    parser.add_argument("count", type=int)
    parser.add_argument("lease_s", type=float)
    args = parser.parse_args()
    live = 0
    for _ in range(args.count):
        if os.fork() == 0:
            asyncio.run(_work(args))
            os._exit(1)
        live += 1
        if args.what == "die" and live == AT_ONCE:
            os.wait()
            live -= 1
    for _ in range(live):
        os.wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
