"""The gate's decisions: admit a batch, drain the backlog, start a call. One script each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import structlog

from lua import Script, load
from pipeline.config import Deployment
from pipeline.limits import allowed, seed
from pipeline.message import Request
from pipeline.outcome import Reading
from pipeline.store.rows import request_rows
from tokenweir.connection import Argument, Connection
from tokenweir.errors import StoreUnavailable

log = structlog.get_logger()

_ADMIT, _DRAIN, _START = load("gate_admit"), load("backlog_drain"), load("calls_start")
_SEED, _BEAT, _RETURN = load("limits_seed"), load("worker_beat"), load("calls_return")
_REPORT = load("budgets_report")


class Verdict(NamedTuple):
    """What the gate decided: `premium`, `edge`, `deferred`, `gone`, or `too_large`, `expired`, `queue_full`."""

    decision: str
    deployment: str


class Drained(NamedTuple):
    """What a drain did, when to look again (-1: nothing to wait for), and the notice kept for that."""

    premium: int
    edge: int
    expired: int
    wait_us: int
    kept: str


class Alarm(NamedTuple):
    """What a report brought to light: `limit_lower`, `foreign_use`, `refunds_proven` or `refunds_contradicted`."""

    deployment: str
    limit: str
    kind: str


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
        status_ttl_s: int,
        responses_kept: int,
    ) -> None:
        self._connection = connection
        self._consumer = consumer
        self._deployments = deployments
        self._budgets = [f"budget:{deployment.name}" for deployment in deployments]
        self._window_s = deployments[0].window_s
        self._edge_queue = edge_queue
        self._max_waiting = max_waiting
        self._retention = f"{responses_kept} {status_ttl_s}"
        self._heard: dict[tuple[str, str], tuple[Argument, ...]] = {}  # the last reading by deployment and limit
        self._seen: dict[tuple[str, str], tuple[Argument, ...]] = {}  # what the budgets were at our last start
        self._seen_at = 0.0
        self._memory_s = max(2 * one.window_s for one in deployments)

    async def seed(self) -> list[str]:
        """Put the configured limits in place where they are new; returns the deployments with other limits in force.

        Also says how many results are kept, and for how long, for programs that have no configuration.
        """
        args: list[Argument] = []
        for deployment in self._deployments:
            args += seed(deployment)
        _, differ = await self._connection.run(_SEED, args, rest=self._budgets)
        await self._connection.command("HSET", self._connection.keys.key("limits"), "@results", self._retention)
        return [name.decode() for name in differ]

    def call_within_s(self, deployment: str) -> float:
        """How long a started call may take to be on its way: a quarter of `send_within_s`."""
        return next((allowed(one).late_s / 4 for one in self._deployments if one.name == deployment), 0.0)

    async def admit(self, rows: Sequence[tuple[str, Request]]) -> list[Verdict]:
        """Decide for a batch of gate entries, in this order, and hand them over."""
        args = [self._edge_queue, self._max_waiting, *self._rows(rows)]
        reply = await self._grant(_ADMIT, args, rows)
        return [
            Verdict(decision.decode(), name.decode()) for decision, name in zip(reply[::2], reply[1::2], strict=True)
        ]

    async def drain(self, notices: Sequence[str], *, most: int) -> Drained:
        """Serve what fits of the backlog; `notices` are acknowledged but for the one that is kept."""
        args: list[Argument] = [self._consumer, self._edge_queue, most, *notices]
        premium, edge, expired, wait_us, kept = await self._grant(_DRAIN, args)
        return Drained(int(premium), int(edge), int(expired), int(wait_us), kept.decode())

    async def start(self, rows: Sequence[tuple[str, Request]], *, again: bool = False) -> list[tuple[str, int]]:
        """Start granted calls: (`started` | `given_back` | `gone`, Redis time in ms) each.

        Args:
            again: the same was asked before and brought no answer, so that no call of these was made.
        """
        answers, seen = await self._grant(_START, [self._consumer, int(again), *self._rows(rows)], rows)
        for deployment, limit, born, cum, *rest in seen:
            former = self._seen.get((deployment.decode(), limit.decode()))
            # Less than before in the same life: charges were lost, and what we know of them isn't told yet.
            if former is None or former[3] != born or int(former[4]) <= int(cum):
                self._seen[deployment.decode(), limit.decode()] = ("seen", deployment, limit, born, cum, *rest)
            self._seen_at = time.monotonic()
        return [(answer.decode(), int(now_ms)) for answer, now_ms in answers]

    async def give_back(self, rows: Sequence[tuple[str, Request]]) -> int:
        """Undo grants that were started and never called for; returns how many were still ours."""
        return int(await self._grant(_RETURN, [self._consumer, *self._rows(rows)], rows))

    def hear(
        self, deployment: str, readings: Iterable[Reading], answered: bool, *, request: Request, sent_ms: float
    ) -> None:
        """Take what a provider's headers said to a call that was sent then (Redis time); `report` passes it on."""
        prompt, output = request.prompt_tokens, request.output_tokens
        own = {"rpm": 1, "tpm": prompt + output, "itpm": prompt, "otpm": output}
        for one in readings:
            figures = (one.left, one.of, round(one.reset_s * 1e6), round(sent_ms * 1000))
            row = ("heard", deployment, one.limit, *figures, own.get(one.limit, 0), int(answered))
            former = self._heard.get((deployment, one.limit))
            # Answers overtake each other; the call that was sent last knows of the others.
            if former is None or former[6] <= row[6]:  # type: ignore[operator]  # both are whole numbers
                self._heard[deployment, one.limit] = row

    async def report(self) -> list[Alarm]:
        """Tell the budgets what was heard, and what they were when we last looked, in case that they lost it."""
        if time.monotonic() - self._seen_at > self._memory_s:
            self._seen.clear()  # no window holds any of that
        rows = [*self._heard.values(), *self._seen.values()]
        if not rows:
            return []
        self._heard.clear()
        args = [part for row in rows for part in row]
        reply = await self._connection.run(_REPORT, args, rest=self._budgets)
        return [Alarm(deployment.decode(), limit.decode(), kind.decode()) for deployment, limit, kind in reply]

    def _rows(self, rows: Sequence[tuple[str, Request]]) -> list[Argument]:
        """The arguments of all `rows`."""
        return request_rows(rows, window_s=self._window_s)

    async def _grant(self, script: Script, args: Sequence[Argument], rows: Sequence[tuple[str, Request]] = ()) -> Any:
        """Run a script that grants. Redis may have been emptied: then limits are put in place first, as a script is."""
        try:
            return await self._run(script, args, rows)
        except StoreUnavailable as error:
            if "NOLIMITS" not in str(error):
                raise
        log.warning("limits_put_in_place_again", effect="premium opens as after a cold start")
        await self.seed()
        return await self._run(script, args, rows)

    async def _run(self, script: Script, args: Sequence[Argument], rows: Sequence[tuple[str, Request]]) -> Any:
        touches = (self._connection.keys.status(request.id) for _, request in rows)
        return await self._connection.run(script, args, rest=self._budgets, touches=touches)

    async def beat(self, *, premium_slots: int, edge_slots: int, ttl_ms: int) -> int:
        """Give a sign of life and offer slots (-1 = leaving); returns Redis time in ms."""
        return int(await self._connection.run(_BEAT, [self._consumer, premium_slots, edge_slots, ttl_ms]))
