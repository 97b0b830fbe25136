"""Where each request goes: the rules of lua/gate_admit.lua and lua/backlog_drain.lua on plain tables.

The scripts decide on what stands in Redis and can't run without it, so their rules are written here a second time;
the arithmetic beneath is not (see `arithmetic`). Whoever changes the rules there changes them here.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from typing import Final

import msgspec

from pipeline.plan.arithmetic import Budgets, Taken
from pipeline.plan.asked import Asked

# As in the drain: nothing tells when a slot comes free; this is how long to wait for a notice before looking.
_NO_SLOT_US: Final = 1_000_000
# As in the pool: after this share of a window the first that waits has its deployment kept for it, until so long after
# the time at which it was to go.
_PATIENCE: Final = 0.25
_RESERVE_US: Final = 5_000_000


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers of a pool have room for: calls at once, and how many requests may wait.

    Attributes:
        edge: calls at once at the edge, 0 = there is none. edge_queue: how many may wait there beyond these.
    """

    premium: int
    edge: int = 0
    edge_queue: int = 0
    most_waiting: int = 100_000
    largest_tokens: int | None = None


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment that is kept for the first of all that wait."""

    asked: Asked
    since: int
    till: float
    score: float
    deployment: int


class _Index:
    """Waiting requests in the order of their scores; those that have gone are dropped when they come first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Asked]] = []
        self._count = 0

    def put(self, asked: Asked, score: float) -> None:
        self._count += 1
        heapq.heappush(self._heap, (score, self._count, asked))

    def first(self) -> tuple[float, Asked] | None:
        heap = self._heap
        while heap and not heap[0][2].waiting:
            heapq.heappop(heap)
        return (heap[0][0], heap[0][2]) if heap else None


class Gate:
    """Decides for newcomers, and serves those who wait when something fits.

    Attributes:
        waiting: requests in the backlog, those whose retry isn't due yet included.
    """

    def __init__(self, budgets: Budgets, room: Room, *, window_s: float) -> None:
        self._budgets = budgets
        self._room = room
        self._window_s = window_s
        self._ranks = (_Index(), _Index(), _Index())
        self._simple = _Index()
        self._tenants: Counter[tuple[int, str]] = Counter()
        self._premium_busy = 0
        self._edge_busy = 0
        self._kept: _Kept | None = None
        self.waiting = 0

    def admit(self, asked: Asked, now: int) -> str:
        """Decide for a newcomer: premium, edge, deferred, too_large or queue_full."""
        room, possible = self._room, self._possible(asked, now)
        if not possible and not asked.simple:
            return "too_large"
        edge_free = room.edge + room.edge_queue - self._edge_busy if room.edge else 0
        if self._premium_busy < room.premium and not self._queued_behind_own(asked):
            floor = "simple" if asked.simple and edge_free > 0 else asked.rank
            if self._take(asked, now, floor).deployment is not None:
                return "premium"
        if asked.simple and edge_free > 0:
            self._edge_busy += 1
            return "edge"
        if not possible:
            return "too_large"
        if self.waiting >= room.most_waiting:
            return "queue_full"
        self.waiting += 1
        asked.deferred = True
        self.ready(asked)
        return "deferred"

    def retry(self, asked: Asked) -> None:
        """Keep `asked` until it is due; `ready` makes it eligible then."""
        self.waiting += 1
        asked.attempt += 1

    def ready(self, asked: Asked) -> None:
        """Let a request that waits be served."""
        asked.waiting = True
        score = asked.score(self._window_s)
        self._ranks[asked.rank].put(asked, score)
        if asked.simple:
            self._simple.put(asked, score)
        self._tenants[asked.rank, asked.tenant] += 1

    def drain(self, now: int) -> tuple[list[tuple[str, Asked]], float]:
        """Serve what fits; returns who goes where, and the microseconds until more may fit (infinite: nobody waits)."""
        moves: list[tuple[str, Asked]] = []
        while True:
            move, wait_us = None, math.inf
            heads = self._heads()
            if self._premium_busy < self._room.premium:
                move, wait_us = self._serve_premium(heads, now)
            elif heads:
                wait_us = _NO_SLOT_US
            if move is None and self._edge_busy < self._room.edge:
                move = self._serve_edge()
            if move is None:
                return moves, wait_us
            self._leave(move[1])
            moves.append(move)

    def leads(self, asked: Asked) -> bool:
        """Whether it is the first of its class, or may go to a free edge: else its coming changes nothing."""
        if asked.simple and self._edge_busy < self._room.edge:
            return True
        first = self._ranks[asked.rank].first()
        return first is not None and first[1] is asked

    @property
    def full(self) -> bool:
        """Whether every premium slot is taken."""
        return self._premium_busy >= self._room.premium

    def ended(self, route: str) -> None:
        """A call has ended; its slot is free."""
        if route == "edge":
            self._edge_busy -= 1
        else:
            self._premium_busy -= 1

    def _possible(self, asked: Asked, now: int) -> bool:
        most = self._room.largest_tokens
        if most is not None and asked.prompt + asked.output > most:
            return False
        return self._budgets.possible(now, asked.prompt, asked.output)

    def _take(self, asked: Asked, now: int, floor: int | str) -> Taken:
        """Grant it, if it fits."""
        kept = self._kept
        barred = (
            kept is not None
            and now < kept.till
            and asked.score(self._window_s) > kept.score
            and now - kept.since >= self._window_s * _PATIENCE * 1e6
        )
        taken = self._budgets.take(now, asked.prompt, asked.output, floor, kept.deployment if kept and barred else None)
        if taken.deployment is not None:
            asked.deployment, asked.granted_us = taken.deployment, now
            self._premium_busy += 1
            if kept is not None and kept.asked is asked:
                self._kept = None
        return taken

    def _keep(self, asked: Asked, now: int, taken: Taken) -> None:
        """Newcomers that find room would make the first of all wait for ever: after a while its deployment is kept."""
        if taken.nearest is None:
            return
        kept = self._kept
        since = kept.since if kept is not None and kept.asked is asked and kept.till > now else now
        self._kept = _Kept(
            asked=asked,
            since=since,
            till=now + taken.wait_us + _RESERVE_US,
            score=asked.score(self._window_s),
            deployment=taken.nearest,
        )

    def _queued_behind_own(self, asked: Asked) -> bool:
        return self.waiting > 0 and any(self._tenants[rank, asked.tenant] for rank in range(asked.rank + 1))

    def _heads(self) -> list[tuple[float, int, Asked]]:
        """The first of each class, best score first."""
        firsts = [(rank, index.first()) for rank, index in enumerate(self._ranks)]
        return sorted((first[0], rank, first[1]) for rank, first in firsts if first)

    def _serve_premium(self, heads: list[tuple[float, int, Asked]], now: int) -> tuple[tuple[str, Asked] | None, float]:
        """A head that fits. One that doesn't keeps back lower classes; one that aged past others has their rights."""
        shortest, lowest = math.inf, 2
        for place, (_, rank, asked) in enumerate(heads):
            if rank > lowest:
                continue
            taken = self._take(asked, now, min(later[1] for later in heads[place:]))
            if taken.deployment is not None:
                return ("premium", asked), 0.0
            if place == 0:
                self._keep(asked, now, taken)
            # What is kept for the first isn't waited for: when that goes, all are looked at again.
            shortest, lowest = min(shortest, taken.open_us if place else taken.wait_us), min(lowest, rank)
        return None, shortest

    def _serve_edge(self) -> tuple[str, Asked] | None:
        first = self._simple.first()
        if first is None:
            return None
        self._edge_busy += 1
        return "edge", first[1]

    def _leave(self, asked: Asked) -> None:
        asked.waiting = False
        self.waiting -= 1
        field = (asked.rank, asked.tenant)
        self._tenants[field] -= 1
        if not self._tenants[field]:
            del self._tenants[field]
