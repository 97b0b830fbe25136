"""Leases: renew what is in hand, take over what others lost, hand back what can't be finished.

A lease is the idle time of a pending entry. Renewing checks the owner first; reclaiming keeps its cursor,
since a scan that always starts at the head never reaches the tail.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import structlog

from pipeline.hands import Hands
from pipeline.metrics import Metrics
from pipeline.stage import Stage
from pipeline.store import LONGEST_WAIT_S, Entry, Store
from tokenweir.errors import StoreUnavailable
from tokenweir.keys import GROUPS

log = structlog.get_logger()

_GO_ON_S = 0.1

# Consumers that hold nothing and were idle for so many leases belong to processes that ended: a live one reads every
# two seconds. Should one be removed all the same, its next read makes it again.
_PRUNE_LEASES, _SHORTEST_PRUNE_S = 10, 5.0


class Leases:
    """The leases of one stage in one process."""

    def __init__(self, stage: Stage, store: Store, hands: Hands, metrics: Metrics, *, lease_s: float) -> None:
        self._stage = stage
        self._lanes = stage.lanes
        self._store = store
        self._hands = hands
        self._metrics = metrics
        self._lease_s = lease_s
        self._prune_ms = round(max(_PRUNE_LEASES * lease_s, _SHORTEST_PRUNE_S) * 1000)
        # Entries that the last renewal didn't find, by lane; `renew_for_ever` only.
        self._missed: dict[str, set[str]] = {lane: set() for lane in stage.lanes}
        self._cursors = dict.fromkeys(stage.lanes, "0-0")  # kept from one look to the next; `reclaim_for_ever` only
        self._more: set[str] = set()  # lanes whose last look took something and has to go on; `reclaim_for_ever` only

    async def renew_for_ever(self, on_lost: Callable[[Sequence[str]], None]) -> None:
        """Every quarter lease, renew all in hand; `on_lost` hears of what is somebody else's by now.

        What has been worked on for longer than the stage's own time-out and a lease is given up: a task that hangs
        must not hold its entry, and its place, for ever.
        """
        while True:
            await asyncio.sleep(self._lease_s / 4)
            hung = self._hands.overdue(self._stage.longest_s + self._lease_s)
            if hung:
                log.error("handling_never_ended", stage=self._stage.name, entries=hung, effect="left to others")
                self._hands.lose(hung)
            for lane, entry_ids in self._hands.by_lane().items():
                try:
                    lost = await self._store.streams.renew(lane, entry_ids)
                except StoreUnavailable as error:
                    self._failed("leases_not_renewed", lane, error)
                    continue
                still = {entry_id for entry_id in lost if entry_id in self._hands}
                # What has just been acknowledged isn't ours any more either, but out of our hands in a moment.
                taken = sorted(still & self._missed[lane])
                self._missed[lane] = still
                if taken:
                    log.warning("entries_taken_over", lane=lane, entries=taken)
                    self._hands.lose(taken)
                    on_lost(taken)

    async def reclaim_for_ever(self, on_taken: Callable[[Sequence[Entry]], None], stop: asyncio.Event) -> None:
        """Take over what has been left for a lease, at most a quarter later; nothing more once `stop` is set.

        Where a look took something and hasn't come to the end, the next one follows as soon as hands are free: of
        thousands that were left, or replayed, the last must not wait for a quarter lease a hundred.
        """
        while not stop.is_set():
            await asyncio.sleep(_GO_ON_S if self._more else self._lease_s / 4 * random.uniform(0.6, 1.0))
            for lane in self._lanes:
                # After an outage everybody's lease is over, though their owners live and are about to renew them.
                if stop.is_set() or self._store.outage.served_s < self._lease_s / 4 + 2 * LONGEST_WAIT_S:
                    break
                try:
                    on_taken(await self._reclaim(lane))
                except StoreUnavailable as error:
                    self._failed("reclaim_failed", lane, error)
                    self._more.clear()
                    if error.forbidden:
                        break  # it isn't this lane that is the trouble

    def _failed(self, event: str, lane: str, error: StoreUnavailable) -> None:
        """Say it, unless an outage is the reason, which has been said."""
        if self._store.outage.serving:
            log.warning(event, lane=lane, reason=str(error), effect="it is tried again in a quarter of a lease")

    async def _reclaim(self, lane: str) -> list[Entry]:
        """One look at one lane."""
        if self._hands.free <= 0:
            return []
        lease_ms = round(self._lease_s * 1000)
        found = await self._store.streams.reclaim(
            lane, lease_ms=lease_ms, cursor=self._cursors[lane], count=min(self._hands.free, 100)
        )
        self._cursors[lane] = found.cursor
        if found.entries and found.cursor != "0-0":
            self._more.add(lane)
        else:
            self._more.discard(lane)
        if found.lost:
            log.warning("entries_without_body_dropped", lane=lane, count=found.lost)
        # What is in hand isn't idle for a lease unless Redis was away; renewing it has just been done by the claim.
        taken = [entry for entry in found.entries if entry.id not in self._hands]
        self._metrics.reclaimed(GROUPS[lane], len(taken), found.lost)
        if found.cursor == "0-0":
            await self._prune(lane, leaving=False)
        return taken

    async def _prune(self, lane: str, *, leaving: bool) -> None:
        """Tidy up where this user may; who may not look at consumers works all the same."""
        try:
            await self._store.streams.prune(lane, leaving=leaving, idle_ms=self._prune_ms)
        except StoreUnavailable as error:
            if not error.forbidden:
                raise

    async def leave(self) -> None:
        """Hand back what is still in hand, no attempt used up, and go: others take it at once."""
        idle_ms = round(self._lease_s * 1000) + 1000
        for begun in (True, False):
            # The delivery of a suspect is counted when its handling begins. A call stays counted once it may have
            # been made: whoever takes it over must know.
            back = int(begun is not self._stage.calls)
            for lane, entry_ids in self._hands.by_lane(begun=begun).items():
                released = await self._store.streams.release(
                    lane, entry_ids, idle_ms=idle_ms, owner=self._store.consumer, back=back
                )
                if released:
                    log.info("entries_handed_back", lane=lane, count=len(released))
        for lane in self._lanes:
            await self._prune(lane, leaving=True)
