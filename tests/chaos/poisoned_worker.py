"""`tokenweir run` with a classify stage that breaks at marked prompts.

At `[poison]` it ends its process, as a crash in native code would; at `[broken]` it raises; at `[reader]` it has the
task end that reads its stream, once, as a cancellation that comes out of a library would.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import stages
from pipeline.outcome import Outcome
from pipeline.stage import Delivery, Stage
from stages.classify import Classify
from tests.chaos.worker import run

POISON, BROKEN, READER = b"[poison]", b"[broken]", b"[reader]"


class Poisoned(Classify):
    """Dies before any except-block can see it, or fails in one that nobody foresaw."""

    async def handle(self, delivery: Delivery) -> Outcome:
        """As its parent, or not at all."""
        prompt = delivery.fields.get(b"prompt", b"")
        if POISON in prompt:
            os._exit(137)
        if BROKEN in prompt:
            raise RuntimeError("a mistake of ours")
        if READER in prompt and delivery.deliveries == 1:
            for task in asyncio.all_tasks():
                if getattr(task.get_coro(), "__qualname__", "") == "StageLoop._read_until":
                    task.cancel()
        return await super().handle(delivery)


def build(pool: Any, keys: Any, **more: Any) -> list[Stage]:
    """The usual stages, one of them poisoned."""
    built = stages.build(pool, keys, **more)
    return [Poisoned(pool, keys) if isinstance(stage, Classify) else stage for stage in built]


if __name__ == "__main__":
    raise SystemExit(run(build))
