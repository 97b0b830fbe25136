"""The sandbox's own endpoints, under `/sandbox` on the OpenAI side's port: faults in, books out."""

from collections.abc import Sequence

import msgspec
from aiohttp import web

from pipeline.sandbox.calls import Call
from pipeline.sandbox.faults import Fault
from pipeline.sandbox.ledger import Used, Worst
from pipeline.sandbox.state import State

_MOST_CALLS = 100_000


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
        ledger = state.ledger
        premium = PremiumBook(
            calls=ledger.calls,
            admitted=ledger.admitted,
            rejected=ledger.rejected,
            rejected_by=state.refusals,
            fates=state.calls.fates["premium"],
            open=state.calls.still_open("premium"),
            worst_window=ledger.worst_window(),
            total=ledger.total(),
            range=Range(from_s=from_s, to_s=to_s, used=ledger.used(from_s, to_s)),
            per_second=ledger.per_second(),
        )
        limits: dict[str, int] = {name: budget.limit for name, budget in state.limits.budgets.items()}
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
        """Add a JSON list of faults; answers with all that wait."""
        try:
            ordered = msgspec.json.decode(await http.read(), type=list[Fault])
        except msgspec.DecodeError as error:
            return _complaint(str(error))
        self._state.faults.ordered.extend(ordered)
        return _json(self._state.faults.ordered)

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
