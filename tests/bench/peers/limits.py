"""The peer `limits`: one limit a call, over redis-py."""

from __future__ import annotations

from limits import RateLimitItemPerSecond  # type: ignore[import-not-found]
from limits.aio.storage import RedisStorage  # type: ignore[import-not-found]
from limits.aio.strategies import (  # type: ignore[import-not-found]
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    SlidingWindowCounterRateLimiter,
)

from tests.bench.peers.load import Job, Limiter, serve

_STRATEGIES = {
    "moving window": MovingWindowRateLimiter,
    "fixed window": FixedWindowRateLimiter,
    "sliding window counter": SlidingWindowCounterRateLimiter,
}


async def _open(job: Job) -> Limiter:
    storage = RedisStorage(f"async+{job.url}", implementation="redispy")
    strategy = _STRATEGIES[job.variant](storage)
    item = RateLimitItemPerSecond(job.limit, job.window_s)

    async def acquire() -> bool:
        return bool(await strategy.hit(item, job.key))

    return Limiter(acquire, storage.bridge.storage.aclose)


if __name__ == "__main__":
    serve(_open)
