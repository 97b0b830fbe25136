"""The way in: turns what producers wrote into requests, or tells them what to mend."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from pipeline.answer import Times, failed
from pipeline.config import Pool
from pipeline.intake import TooLarge, read_entry, readable_id
from pipeline.message import Request
from pipeline.outcome import Dead, Done, Forward, Outcome
from pipeline.stage import Delivery
from tokenweir.errors import ErrorCode, RequestError
from tokenweir.keys import INGEST_LANES, Keys
from tokenweir.wire import ResultStatus

_LATE: Final = "the deadline passed before the request was looked at; allow more time or submit it earlier"


class Classify:
    """Reads an entry, judges it, and sends it to the gate's lane for its class."""

    name = "classify"
    lanes: tuple[str, ...] = INGEST_LANES
    # What stands before an interactive entry in a flood of batch work. Measured with 10,000 in front on two busy
    # cores: at 100 it waits 590 ms, at 32 75 ms, and the flood is as quick; at 16 the flood takes four times as long.
    concurrency = 32
    calls = False
    longest_s = 0.0
    ready = True

    def __init__(self, pool: Pool, keys: Keys) -> None:
        self._pool = pool
        self._keys = keys

    async def handle(self, delivery: Delivery) -> Outcome:
        """Waits for nothing. What can't be understood is dead; what can, but can't be done, gets its error."""
        fields, entered_ms = delivery.fields, delivery.entered_ms
        try:
            request = read_entry(
                fields, entry_id=delivery.entry_id, entered_ms=entered_ms, pool=self._pool, keys=self._keys
            )
        except TooLarge as error:
            request = msgspec.structs.replace(error.request, replay=delivery.replay)
            return _ended(request, error.code, str(error), delivery, status="error")
        except RequestError as error:
            request_id = readable_id(fields, delivery.entry_id)
            return Dead(reason=error.code, message=str(error), code=error.code, request_id=request_id)
        request = msgspec.structs.replace(request, replay=delivery.replay)
        if 0 < request.deadline_ms <= entered_ms + max(0.0, delivery.waited_ms):
            return _ended(request, "deadline_exceeded", _LATE, delivery, status="expired")
        return Forward(request=request, to=f"gate:{request.priority}", claims=True)

    async def run(self, stop: asyncio.Event) -> None:
        """Nothing to do beside deliveries."""

    async def aclose(self) -> None:
        """Nothing was opened."""


def _ended(request: Request, code: ErrorCode, message: str, delivery: Delivery, *, status: ResultStatus) -> Done:
    times = Times(waited_ms=delivery.waited_ms, total_ms=delivery.waited_ms)
    return Done(
        result=failed(request, code, message, status=status, times=times),
        priority=request.priority,
        stream=request.stream,
    )
