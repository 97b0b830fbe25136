"""Deliveries in the hands of one stage, until each has its outcome: read, started where it is a call, decided."""

from __future__ import annotations

import time

import msgspec
import structlog

from pipeline.calls import Calls
from pipeline.hands import Hands
from pipeline.message import NewerVersion, Request
from pipeline.metrics import Metrics
from pipeline.newer import Newer
from pipeline.outcome import Dead, Leave, Outcome
from pipeline.settle import Settler
from pipeline.stage import Delivery, Stage
from pipeline.store import Entry, Store
from tokenweir.keys import MODEL_LANES

log = structlog.get_logger()


class Handling:
    """Has one stage decide; what it decides goes to the settler."""

    def __init__(
        self, stage: Stage, store: Store, metrics: Metrics, hands: Hands, settler: Settler, *, lease_s: float
    ) -> None:
        self._stage = stage
        self._store = store
        self._metrics = metrics
        self._hands = hands
        self._settler = settler
        self._newer = Newer(lease_s=lease_s)
        self.calls = Calls(stage, store, metrics)

    def delivery(self, entry: Entry) -> Delivery:
        """An entry that was read, as stages get it."""
        return Delivery(
            entry_id=entry.id,
            lane=entry.lane,
            fields=entry.fields,
            deliveries=entry.deliveries,
            deployment=entry.fields.get(b"deployment", b"").decode(errors="replace"),
        )

    def request(self, delivery: Delivery) -> Request | None:
        """The request of an inner entry; one that can't be read goes to `dead`, one of a newer release to others."""
        try:
            return delivery.request
        except NewerVersion as error:
            self._settler.put(delivery, self._newer.outcome(delivery, error))
            return None
        except (KeyError, msgspec.DecodeError) as error:
            self._settler.put(delivery, Dead(reason="unreadable", message=f"not an entry of ours: {error}"))
            return None

    async def decide(self, delivery: Delivery) -> None:
        """Have the stage decide, whatever it takes."""
        began = time.perf_counter()
        try:
            if delivery.lane in MODEL_LANES and not self._stage.calls:
                request = self.request(delivery)
                if request is None:
                    return
                delivery = self.calls.timed(delivery, request, self._store.now_ms())
            of_model = delivery.lane in MODEL_LANES
            outcome: Outcome = await (self.calls.run(delivery) if of_model else self._stage.handle(delivery))
        except NewerVersion as error:
            outcome = self._newer.outcome(delivery, error)
        except Exception as error:  # one bad request must not cancel its siblings
            log.exception("stage_failed", stage=self._stage.name, entry=delivery.entry_id)
            outcome = Leave(reason=f"{type(error).__name__}")  # dead after some deliveries, not at the first
        self._metrics.decided_in(self._stage.name, time.perf_counter() - began)
        self._settler.put(delivery, outcome)

    async def call(self, delivery: Delivery) -> None:
        """Start the grant of one call, and make it."""
        request = self.request(delivery)
        if request is None:
            return
        started = await self.calls.start([(delivery, request)])
        if not started:
            self._hands.end([delivery.entry_id])
        for one in started:
            await self.decide(one)
