"""What one stage holds in one process: entries that are pending in Redis under our name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from pipeline.stage import Delivery

# Entries are held several times over while they are worked on: read, decoded, encoded, packed. Measured with 1 MB each:
# four times as much.
MOST_BYTES = 4 * 1024 * 1024
# How large the next entries are can only be guessed by the last ones; never taken for smaller, since after many small
# ones there may come as many fat ones.
_LEAST_BYTES = MOST_BYTES // 64
# A read takes at least one of each lane.
_ALWAYS = 4


class Hands:
    """Deliveries in hand, with the task that decides each.

    Filled by the reader and the reclaimer, emptied by the settler once an outcome is written: until then
    the lease is renewed, so nobody else takes the entry.
    """

    def __init__(self, size: int, *, most_bytes: float = MOST_BYTES) -> None:
        self._size, self._most_bytes = size, most_bytes
        self._held: dict[str, tuple[Delivery, asyncio.Task[None] | None]] = {}
        self._bytes = 0  # of all that is held
        self._usual_bytes: float = _LEAST_BYTES  # what the next entry may have
        self._since: dict[str, float] = {}  # when the task at work on an entry began, monotonic
        self._changed = asyncio.Event()

    def __contains__(self, entry_id: str) -> bool:
        return entry_id in self._held

    def __len__(self) -> int:
        return len(self._held)

    @property
    def free(self) -> int:
        """How many more may be taken, by their count and by their size."""
        fitting = max(0, self._most_bytes - self._bytes) / self._usual_bytes
        return int(min(self._size - len(self._held), fitting if self._held else max(fitting, _ALWAYS)))

    def take(self, delivery: Delivery) -> None:
        """Hold `delivery` from now on."""
        self._held[delivery.entry_id] = (delivery, None)
        self._bytes += delivery.bytes
        self._usual_bytes = max(delivery.bytes, _LEAST_BYTES, self._usual_bytes * 0.9)

    def decided_by(self, entry_id: str, task: asyncio.Task[None]) -> None:
        """Remember the task at work on an entry, so that it can be cancelled when the entry is lost."""
        if entry_id in self._held:
            self._held[entry_id] = (self._held[entry_id][0], task)
            self._since[entry_id] = time.monotonic()

    def end(self, entry_ids: Iterable[str]) -> None:
        """These are no longer in hand."""
        for entry_id in entry_ids:
            delivery, _ = self._held.pop(entry_id, (None, None))
            self._bytes -= delivery.bytes if delivery else 0
            self._since.pop(entry_id, None)
        self._changed.set()

    def lose(self, entry_ids: Iterable[str]) -> None:
        """These belong to somebody else by now: end local work on them."""
        lost = list(entry_ids)
        for entry_id in lost:
            _, task = self._held.get(entry_id, (None, None))
            if task is not None:
                task.cancel()
        self.end(lost)

    def by_lane(self, *, begun: bool | None = None) -> dict[str, list[str]]:
        """The entry ids in hand, by stream; with `begun` only those on which a task has been at work, or none."""
        lanes: dict[str, list[str]] = {}
        for entry_id, (delivery, task) in self._held.items():
            if begun is None or begun is (task is not None):
                lanes.setdefault(delivery.lane, []).append(entry_id)
        return lanes

    def overdue(self, longest_s: float) -> list[str]:
        """Entries whose task has been at work for longer, or was ended by somebody else: no outcome will come."""
        began = time.monotonic() - longest_s
        return [
            entry_id
            for entry_id, (_, task) in self._held.items()
            if task is not None and (task.cancelled() or (not task.done() and self._since[entry_id] < began))
        ]

    def cancel_all(self) -> None:
        """End all local work; the entries stay in hand, pending."""
        for _, task in self._held.values():
            if task is not None:
                task.cancel()

    async def change(self) -> None:
        """Return when something has been ended."""
        self._changed.clear()
        await self._changed.wait()

    def wake(self) -> None:
        """Let whoever waits for a change look again."""
        self._changed.set()
