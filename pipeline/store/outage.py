"""What everybody does while Redis doesn't answer or refuses: wait with jitter, try again, say it once.

Nothing here gives up: entries stay pending, finished answers are held, and readiness is false meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from tokenweir.errors import StoreUnavailable

log = structlog.get_logger()
T = TypeVar("T")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0


class Outage:
    """One process's view of whether Redis serves it. `seconds_total` grows with every outage that ended."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.seconds_total = 0.0

    @property
    def serving(self) -> bool:
        """Whether the last call went well."""
        return self.began is None

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`, repeated until Redis answers. Only for what is safe to repeat."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                result = await call()
            except StoreUnavailable as error:
                self.failed(error)
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
            else:
                self.over()
                return result

    def failed(self, error: StoreUnavailable) -> None:
        """Note that a call failed; logged when the outage begins."""
        if self.began is None:
            self.began = time.monotonic()
            log.error(
                "redis_outage_began", reason=str(error), cure="see `tokenweir check`; work goes on when Redis does"
            )

    def over(self) -> None:
        """Note that a call went well; logged when that ends an outage."""
        if self.began is not None:
            lasted_s = time.monotonic() - self.began
            self.began = None
            self.seconds_total += lasted_s
            log.info("redis_outage_ended", lasted_s=round(lasted_s, 3))
