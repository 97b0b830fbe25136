"""What a stage is, and what it is given. The loop that runs it is `pipeline.loop`.

A stage decides; it never sees Redis and can be tested by calling `handle` with a delivery.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from pipeline.message import Request, decode
from pipeline.outcome import Outcome, Reading

# Sends a piece of the answer to whoever asked for deltas; does nothing when nobody did. Never waits for
# Redis: pieces are written together, a few milliseconds later.
Emit = Callable[[str], None]


def _silent(_text: str) -> None:
    """Nobody asked for deltas."""


# Takes what a provider's headers say as soon as they are there, and whether it answered the call or refused it.
Hear = Callable[[Sequence[Reading], bool], None]


def _deaf(_readings: Sequence[Reading], _answered: bool) -> None:
    """Nobody learns from them."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One entry in the hands of a worker.

    Attributes:
        lane: the stream it stands in (`ingest`, `gate:batch`, `premium`, ...).
        fields: the raw fields; what `decode_request` reads, and what a dead letter keeps.
        deliveries: how often it has been delivered, this time included.
        deployment: on `premium`, which deployment the gate granted; empty elsewhere.
        waited_ms: Redis time from ingest until it came into these hands; -1 = not known yet.
        call_by: on `premium`, the monotonic time by which the call must be on its way, or not be made.
        ends_at: the monotonic time at which its request's deadline passes.
        emit: see `Emit`. hear: see `Hear`.
    """

    entry_id: str
    lane: str
    fields: dict[bytes, bytes]
    deliveries: int = 1
    deployment: str = ""
    waited_ms: float = -1
    call_by: float = math.inf
    ends_at: float = math.inf
    emit: Emit = _silent
    hear: Hear = _deaf

    @property
    def request(self) -> Request:
        """The request that the entry carries.

        Raises:
            msgspec.DecodeError: the entry isn't one of ours.
            KeyError: it has no `request` field.
        """
        return decode(self.fields[b"request"])

    @property
    def bytes(self) -> int:
        """How large its fields are."""
        return sum(map(len, self.fields.values()))

    @property
    def replay(self) -> int:
        """Which life of the request a raw entry opens: 0, or the number that `tokenweir dead replay` wrote."""
        text = self.fields.get(b"replay", b"0")
        return int(text) if text.isdigit() and len(text) < 4 else 0

    @property
    def entered_ms(self) -> int:
        """When the entry was written, Redis time: the first part of its id."""
        return int(self.entry_id.partition("-")[0])


class Stage(Protocol):
    """One step of the pipeline.

    Attributes:
        name: also the name of its consumer group.
        lanes: the streams it reads, first served first.
        concurrency: how many deliveries it holds at once in one process.
        calls: each delivery is a paid call: the loop starts its grant first, and gives late ones back.
        longest_s: no delivery is handled for longer; a lease later it is taken for hung, and left to others.
        ready: nothing is read, and no slots are offered to the gate, while this is False.
    """

    name: str
    lanes: tuple[str, ...]
    concurrency: int
    calls: bool
    longest_s: float

    @property
    def ready(self) -> bool: ...

    async def handle(self, delivery: Delivery) -> Outcome:
        """Decide what becomes of the delivery. Raising leaves it for another delivery, `Leave` likewise."""
        ...

    async def run(self, stop: asyncio.Event) -> None:
        """Background work beside deliveries, such as keeping a model warm; ends soon after `stop` is set."""
        ...

    async def aclose(self) -> None:
        """Close what `run` or `handle` opened."""
        ...
