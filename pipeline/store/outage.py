"""What everybody does while Redis doesn't answer or refuses: wait with jitter, try again, say it once.

Nothing here gives up: entries stay pending, finished answers are held, and readiness is false meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from tokenweir.errors import StoreUnavailable

log = structlog.get_logger()
T = TypeVar("T")

# The longest wait is also what a request may lose after an outage, at each of its stages.
_FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 1.0
# Rights come back when a person gives them back, and every try is a line in the server's ACL log.
FORBIDDEN_WAIT_S = 2.0


class Outage:
    """One process's view of whether Redis serves it. `seconds_total` grows with every outage that ended.

    An outage lasts until everybody who failed has been served: Redis may answer some and refuse others.
    """

    def __init__(self) -> None:
        self.began: float | None = None
        self.seconds_total = 0.0
        self._failing: set[object] = set()
        self._serves_since = -math.inf
        self._forbidden = False

    @property
    def serving(self) -> bool:
        """Whether nobody waits for an answer to what failed."""
        return self.began is None

    @property
    def served_s(self) -> float:
        """How long it has been serving by now; 0 during an outage."""
        return time.monotonic() - self._serves_since if self.serving else 0.0

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`, repeated until Redis answers. Only for what is safe to repeat."""
        wait_s, caller = _FIRST_WAIT_S, object()
        try:
            while True:
                try:
                    result = await call()
                except StoreUnavailable as error:
                    self.failed(error, caller)
                    if error.forbidden:
                        wait_s = FORBIDDEN_WAIT_S
                    await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
                    wait_s = min(wait_s * 2, LONGEST_WAIT_S)
                else:
                    self.over(caller)
                    return result
        finally:
            self._failing.discard(caller)

    def failed(self, error: StoreUnavailable, caller: object) -> None:
        """Note that a call of somebody who will call again failed. Said once, and once more if a right is missing."""
        self._failing.add(caller)
        cure = "see `tokenweir check`; work goes on when Redis does"
        if self.began is None:
            self.began = time.monotonic()
            log.error("redis_outage_began", reason=str(error), cure=cure)
        elif error.forbidden and not self._forbidden:
            log.error("redis_refuses", reason=str(error), cure=cure)
        self._forbidden = self._forbidden or error.forbidden

    def over(self, caller: object) -> None:
        """Note that a call of `caller` went well; logged when that ends an outage."""
        self._failing.discard(caller)
        if self.began is not None and not self._failing:
            self._serves_since = time.monotonic()
            lasted_s = time.monotonic() - self.began
            self.began, self._forbidden = None, False
            self.seconds_total += lasted_s
            log.info("redis_outage_ended", lasted_s=round(lasted_s, 3))
