"""tokenweir's own limiter under the same load: two limits a call, where a peer has one.

Every call ends in Redis, too: as unknown use, or, with `settle`, as less than was reserved.
"""

from __future__ import annotations

from tests.bench.peers.load import Job, serve
from tests.bench.peers.load import Limiter as Opened
from tokenweir.errors import LimitReached
from tokenweir.limiter import Limiter

_RESERVED, _USED = 500, 420


async def _open(job: Job) -> Opened:
    # Requests bind; twice the tokens that they reserve are allowed.
    limits = {"rpm": job.limit, "tpm": 2 * _RESERVED * job.limit, "window_s": job.window_s, "settlement": "refund"}
    # A second from grant to call, as by default; where whole windows of 2 s count, that would be a third of the budget.
    limits["send_within_s"] = job.window_s / 60 if job.worst else 1.0
    limiter = Limiter(job.url, pool=job.key, limits={"primary": limits})
    await limiter.__aenter__()
    settles = job.variant == "reserve + settle"

    async def acquire() -> bool:
        try:
            async with limiter.reserve(tokens=_RESERVED, wait_s=0) as grant:
                if settles:
                    grant.settle(tokens=_USED)
        except LimitReached:
            return False
        return True

    # A budget without a past starts with a debt, which is not what is measured.
    async with limiter.reserve(tokens=_RESERVED):
        pass
    return Opened(acquire, limiter.aclose)


if __name__ == "__main__":
    serve(_open)
