"""The chaos run: a fixed number of requests, and everything that the promises must outlive, at seeded moments."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tests.chaos import troubles
from tests.chaos.ground import Ground, open_ground
from tests.chaos.load import Askers, draft
from tests.chaos.troubles import Trouble
from tests.chaos.verdict import Verdict, judge
from tokenweir.draft import Draft

LEASE_S = 2.0
# Of a window of 6 s: 180 calls a second, and a burst of 120; a wave is larger.
_RPM, _TPM = 1200, 120_000
# Work comes in waves: so many requests are on the way at their height, so few when the next one comes.
_HIGH, _LOW = 600, 150
_ASKED = 0.1
_LAST_S = 60.0


def play(kind: str, *, requests: int, kills: int, cuts: int, seed: int, progress: Callable[[int], None]) -> Verdict:
    """The verdict of one run on a server of this kind.

    Args:
        cuts: replies of Redis that are cut, at least.
        progress: hears how many results are there.
    """
    draw = random.Random(seed)
    limits = {"rpm": _RPM, "tpm": _TPM}
    provider = {**limits, "seed": seed, "ttft_mean_s": 2.0, "ttft_p99_s": 4.0, "tokens_per_second": 200.0}
    with open_ground(kind, provider=provider, call=limits, lease_s=LEASE_S) as ground:
        ground.run(groups=2, workers=3)
        drafts = [draft(index, draw) for index in range(requests)]
        asked = set(draw.sample(range(requests), round(requests * _ASKED)))
        began = time.monotonic()
        with Askers(ground.proxy.url, [drafts[index] for index in sorted(asked)]) as askers:
            ground.sent += [drafts[index].id for index in sorted(asked)]
            added = [one for index, one in enumerate(drafts) if index not in asked]
            _strike(ground, added, _schedule(requests, kills, cuts, draw), draw, progress)
        ground.wait_quiet(LEASE_S * 3)
        seconds = time.monotonic() - began
        assert not askers.failures, askers.failures[:3]
        assert {id_ for id_, result in askers.answers.items() if result.status != "ok"} == set()
        return judge(ground, seconds=seconds)


def _schedule(requests: int, kills: int, cuts: int, draw: random.Random) -> list[tuple[int, Trouble]]:
    """What happens once so many results are there; the last first."""

    def spread(trouble: Trouble, count: int, first: float = 0.03, last: float = 0.85) -> list[tuple[int, Trouble]]:
        width = (last - first) / count
        return [(round(requests * (first + width * (at + draw.random()))), trouble) for at in range(count)]

    events = spread(troubles.kill, kills - 1) + spread(troubles.cut_replies, -(-cuts // troubles.CUT_AT_ONCE))
    events += spread(troubles.flush_scripts, 1, 0.1, 0.8) + spread(troubles.restart, 1, 0.2, 0.4)
    events += spread(troubles.freeze, 1, 0.5, 0.7)
    return sorted(events, key=lambda event: -event[0])


def _strike(
    ground: Ground,
    drafts: list[Draft],
    events: list[tuple[int, Trouble]],
    draw: random.Random,
    progress: Callable[[int], None],
) -> None:
    """Add the requests as room comes, strike at the given counts, and return when all have their results."""
    quiet_since, seen = time.monotonic(), 0
    while len(ground.results) < len(ground.sent) + len(drafts):
        on_the_way = len(ground.sent) - len(ground.results)
        if on_the_way < _LOW and drafts:
            ground.add([drafts.pop() for _ in range(min(_HIGH - on_the_way, len(drafts)))])
        ground.read()
        while events and events[-1][0] <= len(ground.results):
            events.pop()[1](ground, draw)
        progress(len(ground.results))
        if len(ground.results) > seen:
            quiet_since, seen = time.monotonic(), len(ground.results)
        if time.monotonic() - quiet_since > _LAST_S:
            return  # whatever is missing is lost
