"""The peer `throttled-py`: one limit a call."""

from __future__ import annotations

from datetime import timedelta

from throttled.asyncio import RedisStore, Throttled, rate_limiter  # type: ignore[import-not-found]

from tests.bench.peers.load import Job, Limiter, serve

_USING = {"token bucket": "token_bucket", "GCRA": "gcra"}


async def _open(job: Job) -> Limiter:
    quota = rate_limiter.per_duration(timedelta(seconds=job.window_s), job.limit, burst=job.limit)
    store = RedisStore(server=job.url)
    throttle = Throttled(key=job.key, using=_USING[job.variant], quota=quota, store=store)

    async def acquire() -> bool:
        return not (await throttle.limit()).limited

    return Limiter(acquire, store._backend.get_client().aclose)


if __name__ == "__main__":
    serve(_open)
