"""Writes outcomes to Redis: in batches, one script a kind and stream, repeated until Redis answers.

The one place that knows what each outcome means for an entry. Batches form by themselves: while one is
being written, the next collects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import assert_never

import msgspec
import structlog

from pipeline.answer import Times, failed
from pipeline.message import Request
from pipeline.metrics import Metrics
from pipeline.outcome import Admit, Dead, Done, Drain, Forward, Late, Leave, Outcome, PassOn, Retry
from pipeline.stage import Delivery
from pipeline.store import LONGEST_WAIT_S, Entry, Store
from tokenweir.errors import ErrorCode, StoreUnavailable
from tokenweir.keys import GROUPS
from tokenweir.wire import Result, ResultStatus

log = structlog.get_logger()

MOST_AT_ONCE = 128
# How much of the backlog one drain moves: bounds the time of a script call.
MOST_DRAINED = 64
_REFUSALS: dict[str, tuple[ErrorCode, str]] = {
    "too_large": ("too_large_for_limit", "needs more tokens than any deployment of the pool allows in a window"),
    "expired": ("deadline_exceeded", "its deadline passed before it could be started"),
    "queue_full": ("queue_full", "too many requests are waiting; try again later"),
}


class Settled(msgspec.Struct, frozen=True):
    """An outcome with the delivery it ends."""

    delivery: Delivery
    outcome: Outcome


class Settler:
    """Ends deliveries of one stage. `on_end(entry ids)` is called when they are no longer in hand."""

    def __init__(
        self, store: Store, metrics: Metrics, on_end: Callable[[Iterable[str]], None], *, lease_s: float
    ) -> None:
        self._store = store
        self._free_ms = round(lease_s * 1000) + 1000  # idle for so long an entry is anybody's
        self._metrics = metrics
        self._on_end = on_end
        self._queue: asyncio.Queue[Settled] = asyncio.Queue()
        self._look_at: float | None = None  # loop time of the next look at the backlog; `run` only
        self._notices: dict[str, Delivery] = {}  # not acknowledged; in calm times the timer's one; `run` only

    @property
    def waiting_notices(self) -> set[str]:
        """Entries that stay in hand until the backlog has been looked at again."""
        return set(self._notices)

    def forget(self, entry_ids: Iterable[str]) -> None:
        """These notices are somebody else's now."""
        for entry_id in entry_ids:
            self._notices.pop(entry_id, None)

    def put(self, delivery: Delivery, outcome: Outcome) -> None:
        """Have `outcome` written soon."""
        self._queue.put_nowait(Settled(delivery, outcome))

    async def run(self) -> None:
        """Write outcomes as they come, for ever; cancel it when nothing is in hand."""
        while True:
            batch: list[Settled] = []
            if self._look_at is None:
                batch.append(await self._queue.get())
            else:
                try:
                    async with asyncio.timeout_at(self._look_at):
                        batch.append(await self._queue.get())
                except TimeoutError:
                    pass
            while len(batch) < MOST_AT_ONCE and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._write(batch)

    async def _write(self, batch: Sequence[Settled]) -> None:
        due = self._look_at is not None and asyncio.get_running_loop().time() >= self._look_at
        if due or any(isinstance(item.outcome, Drain) for item in batch):
            await self._drain([item.delivery for item in batch if isinstance(item.outcome, Drain)])
            batch = [item for item in batch if not isinstance(item.outcome, Drain)]
        kinds = sorted(batch, key=_kind)
        for _, group in groupby(kinds, key=_kind):
            items = list(group)
            await self._store.outage.insist(partial(self._write_kind, items))
            self._on_end(item.delivery.entry_id for item in items)

    async def _write_kind(self, items: Sequence[Settled]) -> None:
        """Write outcomes of one kind (and, but for the gate, one lane)."""
        lane = items[0].delivery.lane
        match items[0].outcome:
            case Forward():
                await self._forward(lane, items)
            case Admit():
                await self._admit(items)
            case Done():
                done = [(item.delivery.entry_id, item.outcome) for item in items if isinstance(item.outcome, Done)]
                await self._finish(lane, done)
                for item in items:
                    if isinstance(item.outcome, Done) and item.outcome.failure:
                        self._metrics.failed(item.delivery.deployment, item.outcome.failure)
            case Retry():
                rows = [
                    (item.delivery.entry_id, item.delivery.deployment, item.outcome)
                    for item in items
                    if isinstance(item.outcome, Retry)
                ]
                await self._store.streams.retry(lane, rows)
                for _, deployment, retry in rows:
                    reason = retry.failure.reason
                    self._metrics.failed(deployment, retry.failure)
                    log.warning("attempt_failed", request_id=retry.request.id, reason=reason, wait_s=retry.wait_s)
            case Late():
                await self._give_back(items)
            case Dead():
                await self._bury(lane, items)
            case Leave():
                for item in items:
                    assert isinstance(item.outcome, Leave)
                    log.error("entry_left_pending", entry=item.delivery.entry_id, reason=item.outcome.reason)
            case PassOn():
                await self._pass_on(lane, items)
            case Drain():
                raise AssertionError("drains are written by themselves")
            case _ as unknown:
                assert_never(unknown)

    async def _give_back(self, items: Sequence[Settled]) -> None:
        calls = [(item.delivery, item.outcome.request) for item in items if isinstance(item.outcome, Late)]
        await self._store.gate.give_back([(delivery.entry_id, request) for delivery, request in calls])
        for delivery, request in calls:
            self._metrics.started(delivery.deployment, "given_back", request)
            log.warning("call_not_made_in_time", request_id=request.id, cure="fewer workers a core")

    async def _pass_on(self, lane: str, items: Sequence[Settled]) -> None:
        """Of a reclaimed entry this delivery hasn't been counted yet, of a new one it has."""
        for back in (0, 1):
            ids = [item.delivery.entry_id for item in items if (item.delivery.deliveries == 1) is bool(back)]
            if ids:
                await self._store.streams.release(
                    lane, ids, idle_ms=self._free_ms, owner=self._store.consumer, back=back
                )

    async def _forward(self, lane: str, items: Sequence[Settled]) -> None:
        rows = [(item.delivery.entry_id, item.outcome) for item in items if isinstance(item.outcome, Forward)]
        answers = await self._store.streams.forward(lane, rows)
        for (entry_id, outcome), answer in zip(rows, answers, strict=True):
            if answer == b"repeat":
                log.info("repeat_dropped", request_id=outcome.request.id, entry=entry_id)

    async def _admit(self, items: Sequence[Settled]) -> None:
        """Have the gate decide; what it refuses for good is answered with a typed error."""
        rows = [(item.delivery.entry_id, item.outcome.request) for item in items if isinstance(item.outcome, Admit)]
        verdicts = await self._store.gate.admit(rows)
        refused: dict[str, list[tuple[str, Done]]] = {}
        for item, (entry_id, request), verdict in zip(items, rows, verdicts, strict=True):
            self._metrics.decided(request, verdict.decision)
            if verdict.decision in _REFUSALS:
                done = Done(
                    result=self._refusal(request, verdict.decision), priority=request.priority, stream=request.stream
                )
                refused.setdefault(item.delivery.lane, []).append((entry_id, done))
        for lane, rows_of_lane in refused.items():
            await self._finish(lane, rows_of_lane)

    def _refusal(self, request: Request, decision: str) -> Result:
        code, message = _REFUSALS[decision]
        status: ResultStatus = "expired" if decision == "expired" else "error"
        times = Times(waited_ms=max(0.0, self._store.now_ms() - request.entered_ms))
        return failed(request, code, f"request {request.id}: {message}", status=status, times=times)

    async def _finish(self, lane: str, rows: Sequence[tuple[str, Done]]) -> None:
        for (entry_id, done), ended in zip(rows, await self._store.streams.finish(lane, rows), strict=True):
            self._metrics.refunded(ended.prompt, ended.output)
            if ended.first:
                self._metrics.answered(done.result, done.priority)
                log.info("request_answered", request_id=done.result.id, **_figures(done.result))
            else:
                log.info("result_dropped", request_id=done.result.id, entry=entry_id, reason="answered already")

    async def _bury(self, lane: str, items: Sequence[Settled]) -> None:
        now_ms = round(self._store.now_ms())
        rows: list[tuple[Entry, Dead, Result]] = []
        for item in items:
            dead, delivery = item.outcome, item.delivery
            assert isinstance(dead, Dead)
            entry = Entry(delivery.lane, delivery.entry_id, delivery.fields, delivery.deliveries)
            rows.append((entry, dead, failed(_as_request(delivery, dead.request_id), dead.code, dead.message)))
        for (entry, dead, result), ours in zip(
            rows, await self._store.streams.bury(lane, rows, at_ms=now_ms), strict=True
        ):
            if ours:
                self._metrics.buried(GROUPS[lane], dead.reason)
                self._metrics.answered(result, "interactive")  # its class may not be readable; it has no times either
                log.warning("request_buried", request_id=result.id, entry=entry.id, lane=lane, reason=dead.reason)

    async def _drain(self, notices: Sequence[Delivery]) -> None:
        """Serve what fits of the backlog, and arm the timer that the script asks for."""
        self._notices.update((delivery.entry_id, delivery) for delivery in notices)
        try:
            drained = await self._store.gate.drain(list(self._notices), most=MOST_DRAINED)
        except StoreUnavailable as error:
            # The notices stay in hand and pending: look again soon, whatever comes first.
            self._store.outage.failed(error, self)
            self._look_at = asyncio.get_running_loop().time() + LONGEST_WAIT_S
            return
        self._store.outage.over(self)
        self._metrics.drained(drained.premium, drained.edge)
        self._look_at = asyncio.get_running_loop().time() + drained.wait_us / 1e6 if drained.kept else None
        ended = [entry_id for entry_id in self._notices if entry_id != drained.kept]
        for entry_id in ended:
            del self._notices[entry_id]
        self._on_end(ended)


def _kind(item: Settled) -> tuple[str, str]:
    """What may be written in one script call. The gate sorts its lanes itself."""
    name = type(item.outcome).__name__
    return (name, "" if isinstance(item.outcome, Admit) else item.delivery.lane)


def _as_request(delivery: Delivery, request_id: str) -> Request:
    """What can be said of a request that may not be readable."""
    try:
        return delivery.request
    except (KeyError, msgspec.DecodeError):
        return Request(id=request_id or delivery.entry_id, body=msgspec.Raw(b"{}"), replay=delivery.replay)


def _figures(result: Result) -> dict[str, object]:
    """What the one log line of a request says; never its content."""
    return {
        "status": result.status,
        "route": result.route,
        "code": result.code or None,
        "attempt": result.attempt,
        "tokens": result.usage.total_tokens,
        "waited_ms": round(result.waited_ms, 1),
        "ttft_ms": round(result.ttft_ms, 1),
        "total_ms": round(result.total_ms, 1),
    }
