"""Starting granted calls: the last look before money is spent.

A grant counts in the provider's window only if the provider sees the call soon. So a grant is started in
Redis just before the call, and a call that its process couldn't make in time isn't made at all: it goes back.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from functools import partial

import msgspec
import structlog

from pipeline.message import Request
from pipeline.metrics import Metrics
from pipeline.stage import Delivery
from pipeline.store import Store

log = structlog.get_logger()


async def start(store: Store, metrics: Metrics, calls: Sequence[tuple[Delivery, Request]]) -> list[Delivery]:
    """Start the grants of `calls` in one script; returns those to call for now, with their times set.

    Those that were given back, or are no longer ours, are somebody else's from here on.
    """
    if not calls:
        return []
    asked = time.monotonic()
    rows = [(delivery.entry_id, request) for delivery, request in calls]
    tries = itertools.count()
    answers = await store.outage.insist(lambda: store.gate.start(rows, again=next(tries) > 0))
    started: list[Delivery] = []
    for (delivery, request), (answer, now_ms) in zip(calls, answers, strict=True):
        metrics.started(delivery.deployment, answer, request)
        if answer == "started":
            call_by = asked + store.gate.call_within_s(delivery.deployment)
            hear = partial(store.gate.hear, delivery.deployment, request=request, sent_ms=now_ms)
            started.append(msgspec.structs.replace(timed(delivery, request, store, now_ms), call_by=call_by, hear=hear))
        else:
            log.info("grant_not_started", request_id=request.id, answer=answer)
    return started


def timed(delivery: Delivery, request: Request, store: Store, now_ms: float) -> Delivery:
    """`delivery` with its wait so far, and with where its deltas go if they are wanted."""
    emit = store.deltas.emitter(request) if request.stream else delivery.emit
    return msgspec.structs.replace(delivery, waited_ms=max(0.0, now_ms - request.entered_ms), emit=emit)
