"""The stage loop: reads, has the stage decide, and stops in two steps. Outcomes are written by `settle`.

What holds at any moment: an entry in hand is pending in Redis under our name, and its lease is renewed
until its outcome has been written. A crash or a cancellation at any point leaves it pending for others.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections.abc import Sequence
from functools import partial

import msgspec
import structlog

from pipeline.alive import all_alive
from pipeline.handling import Handling
from pipeline.hands import MOST_BYTES, Hands
from pipeline.leases import Leases
from pipeline.metrics import Metrics
from pipeline.newer import newer
from pipeline.outcome import Dead, Forward
from pipeline.settle import Settler
from pipeline.stage import Delivery, Stage
from pipeline.store import Entry, Store
from pipeline.store.outage import FORBIDDEN_WAIT_S
from tokenweir.errors import StoreUnavailable

log = structlog.get_logger()

BLOCK_MS = 2000
# Calls are long, so that neighbours of one should go to other workers.
_MOST_READ, _MOST_CALLS_READ = 100, 10
# Every n-th read begins at the lowest lane, so that a flood of higher classes can't shut it out.
_LOWEST_FIRST = 16


class LoopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the loop must know of the configuration."""

    lease_s: float
    drain_s: float
    max_deliveries: int
    max_attempts: int


class StageLoop:
    """Runs one stage in one process."""

    def __init__(self, stage: Stage, store: Store, metrics: Metrics, settings: LoopSettings) -> None:
        self._stage = stage
        self._store = store
        self._metrics = metrics
        self._settings = settings
        # Granted calls are never left waiting: there are few at once, of a size that classify has looked at.
        self._hands = Hands(stage.concurrency, most_bytes=math.inf if stage.calls else MOST_BYTES)
        self._settler = Settler(store, metrics, self._hands.end, lease_s=settings.lease_s)
        self._leases = Leases(stage, store, self._hands, metrics, lease_s=settings.lease_s)
        self._handling = Handling(stage, store, metrics, self._hands, self._settler, lease_s=settings.lease_s)
        self._suspects: list[Entry] = []  # lost by a worker before, each to be handled alone; filled by reclaim
        self._reader = store.reader()
        self._reader_id, self._reader_link = 0, -1  # its number at Redis, and of which of its connections
        self._wanted = asyncio.Event()  # the reader is wanted elsewhere than in a blocked read
        self.last_read = time.monotonic()  # of the last read that Redis answered, empty or not

    @property
    def full(self) -> bool:
        """Whether it holds as much as it may, so that it doesn't read."""
        return self._hands.free < len(self._stage.lanes)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set; then finish what is in hand, and after `drain_s` hand back the rest."""
        async with asyncio.TaskGroup() as group:
            services = [
                group.create_task(self._settler.run()),
                group.create_task(self._leases.renew_for_ever(self._settler.forget)),
                group.create_task(self._leases.reclaim_for_ever(lambda entries: self._retake(group, entries), stop)),
                group.create_task(self._unblock()),
            ]
            background = group.create_task(self._stage.run(stop))
            reading = group.create_task(self._read_until(group, stop))
            await all_alive([*services, reading], stop)
            self._wanted.set()
            await self._finish(reading)
            for service in (*services, background):
                service.cancel()
        try:
            await self._leases.leave()
        except StoreUnavailable as error:
            log.warning("hand_back_failed", reason=str(error), effect="others take over after the lease")

    async def _join(self) -> None:
        """Make missing groups, and learn by which id our blocked read can be woken."""
        made = await self._store.streams.make_groups(self._stage.lanes)
        self._metrics.groups_made(made)
        await self._know_reader()

    async def _know_reader(self) -> None:
        if self._reader_link != self._reader.links.opened:
            self._reader_id = int(await self._reader.command("CLIENT", "ID"))
            self._reader_link = self._reader.links.opened

    async def _unblock(self) -> None:
        """Wake the blocked read from outside whenever its task is wanted: cancelling it could lose what it just got."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._hands.wake()
            reader, control = self._reader.links, self._store.control.links
            if self._reader_link != reader.opened or reader.place != control.place:
                continue  # the id is another client's there; the read ends by itself within BLOCK_MS
            try:
                await self._store.control.command("CLIENT", "UNBLOCK", self._reader_id)
            except StoreUnavailable as error:
                log.debug("unblock_failed", reason=str(error))  # the read ends by itself within BLOCK_MS

    # Reading

    async def _read_until(self, group: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        """Read whenever there are free slots. Outages are waited out; what they left unseen is taken up."""
        await self._store.outage.insist(self._join)
        crowded = False
        for turn in itertools.count(1):
            # Suspects may be what fills the hands: waiting for room would then be for ever.
            while self.full and not self._suspects and not stop.is_set():
                await self._hands.change()
            if self._suspects and not stop.is_set():
                await self._handle_alone(group, stop)
            if stop.is_set():
                return
            try:
                await self._know_reader()  # an order to read may have taken it to another node
                entries, crowded = await self._read(turn, crowded=crowded)
                self._store.outage.over(self)
            except StoreUnavailable as error:
                self._store.outage.failed(error, self)
                await asyncio.sleep(FORBIDDEN_WAIT_S if error.forbidden else random.uniform(0.05, 0.2))
                entries = await self._store.outage.insist(self._recover)
            self.last_read = time.monotonic()
            self._metrics.was_read(self._stage.name)
            if entries:
                await self._take(group, entries)

    async def _read(self, turn: int, *, crowded: bool) -> tuple[list[Entry], bool]:
        """New entries, and whether the streams may hold more of them than were taken.

        Only then does the order of the lanes matter, and they are read one by one, higher ones first. Else one
        blocking read on all of them takes what is there, or waits: one round trip.
        """
        lanes = self._stage.lanes
        want = min(self._hands.free, _MOST_CALLS_READ if self._stage.calls else _MOST_READ)
        streams = self._store.streams
        if not crowded or len(lanes) == 1:
            count = max(1, want // len(lanes))
            found = await streams.read(self._reader, lanes, count=count, block_ms=BLOCK_MS)
            return found, len(found) >= count
        found = []
        for lane in lanes[::-1] if turn % _LOWEST_FIRST == 0 else lanes:
            if len(found) < want:
                found += await streams.read(self._reader, (lane,), count=want - len(found))
        return found, len(found) >= want

    async def _recover(self) -> list[Entry]:
        """After a read went wrong: what Redis had handed out to us by then, and nobody has in hand."""
        await self._join()
        own = await self._store.streams.own(self._stage.lanes, count=len(self._hands) + _MOST_READ)
        return [entry for entry in own if entry.id not in self._hands][: self._hands.free]

    async def _take(self, group: asyncio.TaskGroup, entries: Sequence[Entry]) -> None:
        """Put entries into the stage's hands; grants of calls are started first."""
        # A group that was made again delivers everything again, also what is being worked on.
        deliveries = [self._handling.delivery(entry) for entry in entries if entry.id not in self._hands]
        for delivery in deliveries:
            self._hands.take(delivery)
        if self._stage.calls:
            calls = [
                (delivery, request)
                for delivery in deliveries
                if (request := self._handling.request(delivery)) is not None
            ]
            deliveries = await self._handling.calls.start(calls)
            started = {delivery.entry_id for delivery in deliveries}
            self._hands.end(delivery.entry_id for delivery, _ in calls if delivery.entry_id not in started)
        for delivery in deliveries:
            self._hands.decided_by(delivery.entry_id, group.create_task(self._handling.decide(delivery)))

    # Taking over

    def _retake(self, group: asyncio.TaskGroup, entries: Sequence[Entry]) -> None:
        """Entries that another worker lost. Too many deliveries are the end; only deliveries count."""
        for entry in entries:
            delivery = self._handling.delivery(entry)
            self._hands.take(delivery)
            if self._stage.calls and entry.deliveries > 1:
                self._send_back(delivery)
            elif self._stage.calls:  # handed back before anybody called
                self._hands.decided_by(entry.id, group.create_task(self._handling.call(delivery)))
            elif entry.deliveries < 2 or self._stage.name == "deferred" or newer(delivery):
                # A notice can't be poison, and whether a newer release's entry is, that release must find out.
                self._hands.decided_by(entry.id, group.create_task(self._handling.decide(delivery)))
            elif entry.deliveries > self._settings.max_deliveries:
                self._settler.put(delivery, self._poisoned(delivery))
            else:
                self._suspects.append(entry)
                self._wanted.set()

    def _send_back(self, delivery: Delivery) -> None:
        """The call may have been made: another attempt, through the gate, with a charge of its own."""
        request = self._handling.request(delivery)
        if request is None:
            return
        if request.attempt >= self._settings.max_attempts + self._settings.max_deliveries:
            self._settler.put(delivery, self._poisoned(delivery))
            return
        again = msgspec.structs.replace(request, attempt=request.attempt + 1)
        self._settler.put(delivery, Forward(request=again, to=f"gate:{request.priority}"))

    def _poisoned(self, delivery: Delivery) -> Dead:
        try:
            request_id = delivery.request.id
        except (KeyError, msgspec.DecodeError):
            request_id = delivery.fields.get(b"id", b"").decode(errors="replace")
        message = "its workers died or failed at every delivery; it is kept in `dead`"
        return Dead(reason="deliveries", message=message, request_id=request_id)

    async def _handle_alone(self, group: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        """One suspect at a time with nothing beside it, so that the innocent don't die with a killer.

        Its delivery is counted only now: those that wait behind a killer aren't charged for its deeds.
        """
        while self._suspects and not stop.is_set():
            if len(self._hands) > len(self._waiting_suspects()):
                await self._hands.change()
                continue
            entry = self._suspects.pop(0)
            if entry.id not in self._hands:
                continue
            if not await self._store.outage.insist(partial(self._store.streams.count_delivery, entry)):
                self._hands.end([entry.id])
                continue
            self._hands.decided_by(entry.id, group.create_task(self._handling.decide(self._handling.delivery(entry))))

    # Stopping

    async def _finish(self, reading: asyncio.Task[None]) -> None:
        """Let what is in hand finish for `drain_s`, still renewing leases; then cancel it."""
        try:
            async with asyncio.timeout(self._settings.drain_s):
                await asyncio.wait([reading])  # ends by itself, unless Redis is away
                while len(self._hands) > len(self._settler.waiting_notices) + len(self._waiting_suspects()):
                    await self._hands.change()
        except TimeoutError:
            log.warning("drain_ran_out", stage=self._stage.name, in_hand=len(self._hands))
            reading.cancel()
            self._hands.cancel_all()

    def _waiting_suspects(self) -> list[Entry]:
        return [entry for entry in self._suspects if entry.id in self._hands]
