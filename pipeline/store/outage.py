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
# Rights come back when a person gives them back, and every try is a line in the server's ACL log.
FORBIDDEN_WAIT_S = 2.0


class Outage:
    """One process's view of whether Redis serves it. `seconds_total` grows with every outage that ended."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.seconds_total = 0.0
        self._forbidden = False

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
                if error.forbidden:
                    wait_s = FORBIDDEN_WAIT_S
                await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
            else:
                self.over()
                return result

    def failed(self, error: StoreUnavailable) -> None:
        """Note that a call failed; logged when the outage begins, and when it turns out to be a matter of rights."""
        cure = "see `tokenweir check`; work goes on when Redis does"
        if self.began is None:
            self.began = time.monotonic()
            log.error("redis_outage_began", reason=str(error), cure=cure)
        elif error.forbidden and not self._forbidden:
            log.error("redis_refuses", reason=str(error), cure=cure)
        self._forbidden = self._forbidden or error.forbidden

    def over(self) -> None:
        """Note that a call went well; logged when that ends an outage."""
        if self.began is not None:
            lasted_s = time.monotonic() - self.began
            self.began, self._forbidden = None, False
            self.seconds_total += lasted_s
            log.info("redis_outage_ended", lasted_s=round(lasted_s, 3))
