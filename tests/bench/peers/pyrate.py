"""The peer `pyrate-limiter`: one limit a call, in a sorted set or as a token bucket."""

from __future__ import annotations

from pyrate_limiter import (  # type: ignore[import-not-found]
    Duration,
    Rate,
    RedisBucket,
    RedisStateStore,
    StateBucket,
    TokenBucket,
)
from pyrate_limiter import Limiter as Pyrate
from redis.asyncio import Redis

from tests.bench.peers.load import Job, Limiter, serve


async def _open(job: Job) -> Limiter:
    redis = Redis.from_url(job.url)
    rate = Rate(job.limit, Duration.SECOND * job.window_s)
    if job.variant == "token bucket":
        bucket = StateBucket([rate], TokenBucket(), RedisStateStore(redis, job.key))
    else:
        bucket = await RedisBucket.init([rate], redis, job.key)
    limiter = Pyrate(bucket)

    async def acquire() -> bool:
        return bool(await limiter.try_acquire_async("call", blocking=False))

    async def close() -> None:
        limiter.close()
        await redis.aclose()

    return Limiter(acquire, close)


if __name__ == "__main__":
    serve(_open)
