"""The gate's decisions: admit a batch, drain the backlog, start a call. One script each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import structlog

from lua import Script, load
from pipeline.config import Deployment
from pipeline.limits import seed
from pipeline.message import Request
from pipeline.store.rows import request_row
from tokenweir.connection import Argument, Connection
from tokenweir.errors import StoreUnavailable

log = structlog.get_logger()

_ADMIT, _DRAIN, _START = load("gate_admit"), load("backlog_drain"), load("calls_start")
_SEED, _BEAT, _RETURN = load("limits_seed"), load("worker_beat"), load("calls_return")


class Verdict(NamedTuple):
    """What the gate decided: `premium`, `edge`, `deferred`, `gone`, or `too_large`, `expired`, `queue_full`."""

    decision: str
    deployment: str
    position: int


class Drained(NamedTuple):
    """What a drain did, when to look again (-1: nothing to wait for), and the notice kept for that."""

    premium: int
    edge: int
    expired: int
    wait_us: int
    kept: str


class Gate:
    """The gate of one pool, for one consumer."""

    def __init__(
        self,
        connection: Connection,
        *,
        consumer: str,
        deployments: Sequence[Deployment],
        edge_queue: int,
        max_waiting: int,
    ) -> None:
        self._connection = connection
        self._consumer = consumer
        self._deployments = deployments
        self._budgets = [f"budget:{deployment.name}" for deployment in deployments]
        self._window_s = deployments[0].window_s
        self._edge_queue = edge_queue
        self._max_waiting = max_waiting

    async def seed(self) -> int:
        """Put the configured limits in place where they changed; returns the limits' version."""
        args: list[Argument] = []
        for deployment in self._deployments:
            args += seed(deployment)
        return int(await self._connection.run(_SEED, args, rest=self._budgets))

    def call_within_s(self, deployment: str) -> float:
        """How long a started call may take to be on its way: a quarter of `send_within_s`."""
        return next((one.send_within_s / 4 for one in self._deployments if one.name == deployment), 0.0)

    async def admit(self, rows: Sequence[tuple[str, Request]]) -> list[Verdict]:
        """Decide for a batch of gate entries, in this order, and hand them over."""
        args = [self._edge_queue, self._max_waiting, *self._rows(rows)]
        reply = await self._grant(_ADMIT, args)
        return [Verdict(decision.decode(), name.decode(), int(position)) for decision, name, position in reply]

    async def drain(self, notices: Sequence[str], *, most: int) -> Drained:
        """Serve what fits of the backlog; `notices` are acknowledged but for the one that is kept."""
        args: list[Argument] = [self._consumer, self._edge_queue, most, *notices]
        premium, edge, expired, wait_us, kept = await self._grant(_DRAIN, args)
        return Drained(int(premium), int(edge), int(expired), int(wait_us), kept.decode())

    async def start(self, rows: Sequence[tuple[str, Request]]) -> list[tuple[str, int]]:
        """Start granted calls: (`started` | `given_back` | `gone`, Redis time in ms) each."""
        reply = await self._grant(_START, [self._consumer, *self._rows(rows)])
        return [(answer.decode(), int(now_ms)) for answer, now_ms in reply]

    async def give_back(self, rows: Sequence[tuple[str, Request]]) -> int:
        """Undo grants that were started and never called for; returns how many were still ours."""
        return int(await self._grant(_RETURN, [self._consumer, *self._rows(rows)]))

    def _rows(self, rows: Sequence[tuple[str, Request]]) -> list[Argument]:
        """The arguments of all `rows`, one after the other."""
        return [part for entry_id, request in rows for part in request_row(entry_id, request, window_s=self._window_s)]

    async def _grant(self, script: Script, args: Sequence[Argument]) -> Any:
        """Run a script that grants. Redis may have been emptied: then limits are put in place first, as a script is."""
        try:
            return await self._connection.run(script, args, rest=self._budgets)
        except StoreUnavailable as error:
            if "NOLIMITS" not in str(error):
                raise
        log.warning("limits_put_in_place_again", effect="premium opens as after a cold start")
        await self.seed()
        return await self._connection.run(script, args, rest=self._budgets)

    async def beat(self, *, premium_slots: int, edge_slots: int, ttl_ms: int) -> int:
        """Give a sign of life and offer slots (-1 = leaving); returns Redis time in ms."""
        return int(await self._connection.run(_BEAT, [self._consumer, premium_slots, edge_slots, ttl_ms]))
