"""tokenweir's own limiter under the same load: two limits a call, where a peer has one."""

from __future__ import annotations

from tests.bench.peers.load import Job, Limiter, serve


async def _open(job: Job) -> Limiter:
    raise NotImplementedError("tokenweir.Limiter isn't there yet")


if __name__ == "__main__":
    serve(_open)
