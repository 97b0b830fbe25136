"""The sandbox's own endpoints, under `/sandbox` on the OpenAI side's port: faults and changes in, books out."""

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from pipeline.sandbox.calls import Call
from pipeline.sandbox.faults import Fault
from pipeline.sandbox.foreign import ForeignCount
from pipeline.sandbox.ledger import Used, Worst
from pipeline.sandbox.settings import DIMENSIONS, SandboxSettings
from pipeline.sandbox.state import State

_MOST_CALLS = 100_000
_LIVE = {*DIMENSIONS, "enforcement", "refund", "headers", "foreign_share", "foreign_tokens"}


class Range(msgspec.Struct, frozen=True):
    """What the limits admitted from `from_s` up to but without `to_s`."""

    from_s: float
    to_s: float
    used: Used


class PremiumBook(msgspec.Struct, frozen=True):
    """The ledger of the premium side.

    Attributes:
        rejected: 429s sent because of the limits; 429s ordered as faults aren't among them.
        rejected_by: the same by reason: the dimension that was short, or too_large.
        refunded: tokens given back; the totals hold them all the same.
        foreign: calls of the other program on the key. They are in none of the other numbers.
        fates: ends of calls: answered, refused, invalid, fault, gone; `open` ones have none yet.
    """

    calls: int
    admitted: int
    rejected: int
    rejected_by: dict[str, int]
    fates: dict[str, int]
    open: int
    worst_window: Worst
    total: Used
    range: Range
    per_second: Sequence[Sequence[int]]
    refunded: int
    foreign: ForeignCount


class EdgeBook(msgspec.Struct, frozen=True):
    """Calls of the edge side."""

    fates: dict[str, int]
    open: int
    loaded: bool


class Book(msgspec.Struct, frozen=True):
    """`GET /sandbox/ledger`; times on the sandbox's clock, which is the system's monotonic one."""

    now: float
    started_s: float
    window_s: float
    enforcement: str
    limits: dict[str, int]
    premium: PremiumBook
    edge: EdgeBook


class CallPage(msgspec.Struct, frozen=True):
    """`GET /sandbox/calls`; `next` is the `since` of the page behind."""

    now: float
    next: int
    calls: list[Call]


class Control:
    """Handlers over one state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/sandbox/ledger", self.ledger),
            web.get("/sandbox/calls", self.calls),
            web.get("/sandbox/faults", self.faults),
            web.post("/sandbox/faults", self.order),
            web.delete("/sandbox/faults", self.clear),
            web.get("/sandbox/settings", self.settings),
            web.post("/sandbox/settings", self.change),
            web.post("/sandbox/reset", self.reset),
        ]

    async def ledger(self, http: web.Request) -> web.Response:
        """The whole book; `?from=&to=` sets the range to sum up, by default from the start until now."""
        state = self._state
        now = state.clock()
        try:
            from_s, to_s = _number(http, "from", state.started_s), _number(http, "to", now)
        except ValueError as error:
            return _complaint(str(error))
        account = state.account
        account.advance(now)
        ledger = account.ledger
        premium = PremiumBook(
            calls=ledger.calls,
            admitted=ledger.admitted,
            rejected=ledger.rejected,
            rejected_by=account.refusals,
            fates=state.calls.fates["premium"],
            open=state.calls.still_open("premium"),
            worst_window=ledger.worst_window(),
            total=ledger.total(),
            range=Range(from_s=from_s, to_s=to_s, used=ledger.used(from_s, to_s)),
            per_second=ledger.per_second(),
            refunded=account.refunded,
            foreign=account.foreign,
        )
        limits: dict[str, int] = {name: budget.limit for name, budget in account.limits.budgets.items()}
        return _json(
            Book(
                now=now,
                started_s=state.started_s,
                window_s=state.settings.window_s,
                enforcement=state.settings.enforcement,
                limits=limits,
                premium=premium,
                edge=EdgeBook(
                    fates=state.calls.fates["edge"], open=state.calls.still_open("edge"), loaded=state.edge_loaded
                ),
            )
        )

    async def calls(self, http: web.Request) -> web.Response:
        """Calls numbered `?since=` and later, both sides, oldest first."""
        try:
            since = int(_number(http, "since", 1))
        except ValueError as error:
            return _complaint(str(error))
        calls = list(self._state.calls.since(since, _MOST_CALLS))
        return _json(CallPage(now=self._state.clock(), next=calls[-1].seq + 1 if calls else since, calls=calls))

    async def faults(self, http: web.Request) -> web.Response:
        """Faults that haven't struck yet."""
        return _json(self._state.faults.ordered)

    async def order(self, http: web.Request) -> web.Response:
        """Add a JSON list of faults, all or none; answers with all that wait."""
        try:
            ordered = msgspec.json.decode(await http.read(), type=list[Fault])
        except msgspec.DecodeError as error:
            return _complaint(str(error))
        self._state.faults.ordered.extend(ordered)
        return _json(self._state.faults.ordered)

    async def clear(self, http: web.Request) -> web.Response:
        """Call off all faults that wait, those without an end included."""
        self._state.faults.ordered.clear()
        return _json(self._state.faults.ordered)

    async def settings(self, http: web.Request) -> web.Response:
        """What may be changed while it runs."""
        return _json(self._live())

    async def change(self, http: web.Request) -> web.Response:
        """Change some settings, all or none, by a JSON object of them; answers with all that may be changed.

        Other limits or another enforcement mean fresh budgets and a worst window measured anew; the rest of the books
        goes on, and calls in flight belong to the budgets that admitted them.
        """
        try:
            wanted = msgspec.json.decode(await http.read(), type=dict[str, Any])
            if unknown := wanted.keys() - _LIVE:
                raise ValueError(f"can't be changed: {', '.join(sorted(unknown))}; can be: {', '.join(sorted(_LIVE))}")
            everything = msgspec.structs.asdict(self._state.settings)
            self._state.change(msgspec.convert({**everything, **wanted}, SandboxSettings))
        except (msgspec.DecodeError, ValueError) as error:
            return _complaint(str(error))
        return _json(self._live())

    def _live(self) -> dict[str, Any]:
        return {name: getattr(self._state.settings, name) for name in sorted(_LIVE)}

    async def reset(self, http: web.Request) -> web.Response:
        """Forget everything, as just started; answers with the time from which the books count."""
        self._state.reset()
        return _json({"now": self._state.started_s})


def _number(http: web.Request, name: str, default: float) -> float:
    text = http.query.get(name)
    try:
        return float(text) if text else default
    except ValueError:
        raise ValueError(f"{name} must be a number, not {text!r}") from None


def _json(body: object, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def _complaint(text: str) -> web.Response:
    return _json({"error": text}, status=400)
