"""`python -m tests.chaos.many`: 50,000 requests through real workers, with a provider that answers at once.

Afterwards every work stream is empty and Redis holds what it held before. `responses` and statuses are kept by design,
so in this run only for seconds: both times it is looked when they have gone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import msgspec

from tests.chaos.health import Health, differences, rest
from tests.integration.processes import wait_until
from tests.integration.rig import Rig, open_rig
from tests.support import KINDS

_WORKERS = 2
# As many are on the way in the warm-up as ever: what Redis and its Lua need for that once, they keep.
_WARM_UP, _AT_ONCE, _MOST_ON_THE_WAY = 4000, 500, 4000
_STATUS_TTL_S = 5


class Passed(msgspec.Struct, kw_only=True):
    """What so many requests came to. `results` is how many terminal results were ever written."""

    server: str
    requests: int
    results: int
    seconds: float
    stuck: dict[str, int]
    before: Health
    after: Health

    @property
    def broken(self) -> dict[str, str]:
        """What isn't as it should be."""
        found = differences(self.before, self.after) | {name: str(count) for name, count in self.stuck.items()}
        return found | ({} if self.results == self.requests else {"results": str(self.results)})


def play(kind: str, requests: int, progress: Callable[[int], None]) -> Passed:
    """Send them all, and look at what is left."""
    # Nobody counts in windows here: a grant may take its time, however busy the machine is.
    limits = {"rpm": 10_000_000, "tpm": 10_000_000_000, "window_s": 1.0, "send_within_s": 10.0}
    with open_rig(kind=kind, call=limits, status_ttl_s=_STATUS_TTL_S, responses_kept=1000, lease_s=30.0) as rig:
        rig.run(_WORKERS, program=("-m", "tests.chaos.instant_worker"))
        _send(rig, _WARM_UP, progress)
        before = rest(rig, workers=_WORKERS, expiring=4)
        began = time.monotonic()
        results = _send(rig, requests, progress)
        seconds = time.monotonic() - began
        after = rest(rig, workers=_WORKERS, expiring=4, base=before)
        return Passed(
            server=kind,
            requests=requests,
            results=results,
            seconds=round(seconds, 1),
            stuck=rig.lengths(),
            before=before,
            after=after,
        )


def _send(rig: Rig, count: int, progress: Callable[[int], None]) -> int:
    """Add so many, some at a time, and return when all is done: how many results were written for them."""
    first, sent, lane = _written(rig), 0, rig.keys.key("ingest")

    def room() -> bool:
        progress(_written(rig) - first)
        return sent - (_written(rig) - first) < _MOST_ON_THE_WAY

    while sent < count:
        wait_until(room, 60, why=f"{rig.state()}")
        pipe = rig.redis.pipeline(transaction=False)
        for index in range(min(_AT_ONCE, count - sent)):
            pipe.xadd(lane, {"prompt": f"[{sent + index}] Where is my parcel?", "task": "analysis"})
        sent += len(pipe.execute())
    wait_until(lambda: _written(rig) - first >= count, 60, why=f"{rig.state()}")
    wait_until(lambda: not rig.lengths(), 20, why=f"stuck: {rig.lengths()}")
    progress(_written(rig) - first)
    return _written(rig) - first


def _written(rig: Rig) -> int:
    """How many entries `responses` ever had."""
    if not rig.redis.exists(rig.keys.key("responses")):
        return 0
    about: Any = rig.redis.xinfo_stream(rig.keys.key("responses"))
    return int(about["entries-added"])


def main() -> int:
    """Play, and print what came of it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.many", description=__doc__)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--server", choices=KINDS, default="valkey")
    args = parser.parse_args()
    passed = play(args.server, args.requests, lambda _count: None)
    for name, text in passed.broken.items():
        print(f"BROKEN: {name} {text}")
    print(msgspec.json.encode(passed).decode())
    return int(bool(passed.broken))


if __name__ == "__main__":
    raise SystemExit(main())
