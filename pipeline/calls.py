"""Calls of models: started just before money is spent, and ended before their time where nobody wants them any more.

A grant counts in the provider's window only if the provider sees the call soon. So a grant is started in
Redis just before the call, and a call that its process couldn't make in time isn't made at all: it goes back.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec
import structlog

from pipeline.answer import Stopwatch, failed
from pipeline.message import Request
from pipeline.metrics import Metrics
from pipeline.outcome import Done, Failure, Outcome
from pipeline.stage import Delivery, Stage
from pipeline.store import Store
from tokenweir.errors import ErrorCode
from tokenweir.wire import ResultStatus, Route

log = structlog.get_logger()

_ENDS: Final[dict[ErrorCode, tuple[ResultStatus, str]]] = {
    "cancelled": ("cancelled", "its producer cancelled it; the call was closed"),
    "deadline_exceeded": ("expired", "its deadline passed before the model had answered; the call was closed"),
}


class _Running:
    """A call under way. `limit` ends it at the request's deadline, or at once when it is cancelled."""

    def __init__(self, request: Request, ends_at: float) -> None:
        self.request = request
        self.code: ErrorCode = "deadline_exceeded"
        self.limit = asyncio.timeout(None if ends_at == math.inf else ends_at - time.monotonic())

    def cancel(self) -> None:
        """End it now."""
        if not self.limit.expired():
            self.code = "cancelled"
            self.limit.reschedule(asyncio.get_running_loop().time())


class Calls:
    """The calls of one stage in one process."""

    def __init__(self, stage: Stage, store: Store, metrics: Metrics) -> None:
        self._stage = stage
        self._store = store
        self._metrics = metrics
        self._running: set[_Running] = set()
        store.cancelled.listen(self._cancel)

    async def start(self, calls: Sequence[tuple[Delivery, Request]]) -> list[Delivery]:
        """Start the grants of `calls` in one script; returns those to call for now, with their times set.

        Those that were given back, or are no longer ours, are somebody else's from here on.
        """
        if not calls:
            return []
        store = self._store
        asked = time.monotonic()
        rows = [(delivery.entry_id, request) for delivery, request in calls]
        tries = itertools.count()
        answers = await store.outage.insist(lambda: store.gate.start(rows, again=next(tries) > 0))
        started: list[Delivery] = []
        for (delivery, request), (answer, now_ms) in zip(calls, answers, strict=True):
            self._metrics.started(delivery.deployment, answer, request)
            if answer == "started":
                call_by = asked + store.gate.call_within_s(delivery.deployment)
                hear = partial(store.gate.hear, delivery.deployment, request=request, sent_ms=now_ms)
                timed = self.timed(delivery, request, now_ms)
                started.append(msgspec.structs.replace(timed, call_by=call_by, hear=hear))
            else:
                log.info("grant_not_started", request_id=request.id, answer=answer)
        return started

    def timed(self, delivery: Delivery, request: Request, now_ms: float) -> Delivery:
        """`delivery` with its wait so far, the end of its time, and where its deltas go if they are wanted.

        Args:
            now_ms: Redis time.
        """
        left_s = (request.deadline_ms - now_ms) / 1000 if request.deadline_ms else math.inf
        emit = self._store.deltas.emitter(request) if request.stream else delivery.emit
        return msgspec.structs.replace(
            delivery,
            waited_ms=max(0.0, now_ms - request.entered_ms),
            ends_at=time.monotonic() + left_s,
            emit=emit,
        )

    async def run(self, delivery: Delivery) -> Outcome:
        """What the stage makes of a call, unless its request is cancelled or its deadline passes: that ends it at once.

        What a call cost that was closed isn't known, so all that was reserved for it stays charged; also where it was
        started and, a moment later, not made.
        """
        request, watch = delivery.request, Stopwatch(delivery.waited_ms)
        running = _Running(request, delivery.ends_at)
        if self._store.cancelled.holds(request):
            return self._ended(request, "cancelled", watch)
        if time.monotonic() >= delivery.ends_at:
            return self._ended(request, "deadline_exceeded", watch)
        self._running.add(running)
        try:
            async with running.limit:
                watch.call_started()
                return await self._stage.handle(delivery)
        except TimeoutError:
            if not running.limit.expired():
                raise
            return self._ended(request, running.code, watch)
        finally:
            self._running.discard(running)

    def _cancel(self, request_id: str) -> None:
        for running in self._running:
            if running.request.id == request_id and self._store.cancelled.holds(running.request):
                running.cancel()

    def _ended(self, request: Request, code: ErrorCode, watch: Stopwatch) -> Done:
        status, message = _ENDS[code]
        route: Route = "premium" if self._stage.calls else "edge"
        result = failed(
            request, code, f"request {request.id}: {message}", status=status, route=route, times=watch.times()
        )
        failure = Failure(code) if self._stage.calls else None
        return Done(result=result, priority=request.priority, stream=request.stream, failure=failure)
