"""One pool in virtual time: callers, gate, workers, provider and edge as a sequence of events.

Decisions come from `gate`, their arithmetic from the Lua texts, refusals from the sandbox's judge. Here is only what
happens between them: how long a grant is on its way, how long an answer takes, and when its headers and its usage are
known.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from random import Random
from typing import Final, Literal

import msgspec

from pipeline.plan.arithmetic import Budgets
from pipeline.plan.asked import Asked
from pipeline.plan.figures import Tally
from pipeline.plan.gate import Gate, Room
from pipeline.plan.provider import Provider, Receipt
from pipeline.plan.traffic import Traffic
from pipeline.sandbox.latency import Lognormal
from tokenweir.terms import Terms

Delays = Literal["mixed", "random", "extremes"]

SECOND: Final = 1_000_000
# Sixteen digits, as Redis's clock has them: the arithmetic's numbers are as long as in production.
EPOCH_US: Final = 1_700_000_000_000_000
# From the end of a wait to the script that it was for.
_WAKE_US: Final = 1_000
# A refusal's way back.
_BACK_US: Final = 50_000
_RETRY_AT_LEAST_US: Final = 1_000


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated, besides its traffic.

    Attributes:
        terms: by deployment, in the same order as the providers.
        delays: from the grant to the provider's count: anything up to J, by turns nothing and J, or both by turns.
    """

    terms: Sequence[Terms]
    room: Room
    delays: Delays = "mixed"
    seed: int = 1
    tokens_per_s: float = 80.0
    ttft_mean_s: float = 0.9
    ttft_p99_s: float = 1.8
    edge_mean_s: float = 1.2
    edge_p99_s: float = 3.0
    most_attempts: int = 3
    parts: Mapping[str, str] | None = None

    @property
    def window_s(self) -> float:
        """The window of the first deployment: what the backlog's ageing is measured in."""
        return self.terms[0].allowed.window_s


class Simulation:
    """Runs once; `tally` and the providers hold what came of it."""

    def __init__(self, setup: Setup, traffic: Traffic, providers: Sequence[Provider], tally: Tally) -> None:
        self._setup, self._traffic, self._providers, self.tally = setup, traffic, providers, tally
        self.budgets = Budgets(setup.terms, setup.parts)
        self._gate = Gate(self.budgets, setup.room, window_s=setup.window_s)
        self._random = Random(f"{setup.seed} delays")
        self._ttft = Lognormal.through(mean_s=setup.ttft_mean_s, p99_s=setup.ttft_p99_s)
        self._edge = Lognormal.through(mean_s=setup.edge_mean_s, p99_s=setup.edge_p99_s)
        self._hears = [term.feedback or term.settlement == "auto" for term in setup.terms]
        self._late_us = [round(term.allowed.late_s * SECOND) for term in setup.terms]
        self._arrivals: Iterator[Asked] = iter(())
        self._events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._number = count()
        self._granted = 0
        self._wake_at: int | None = None
        self._now = 0

    def run(self, until_us: int | None, progress: Callable[[int], None] = lambda _now: None) -> int:
        """Play until then, or until nothing is left to happen; returns when that was, in microseconds."""
        self._arrivals = self._traffic.arrivals()
        self._next_arrival()
        if self.tally.seconds is not None:
            self._at(SECOND, self._sample)
        shown = 0
        while self._events and (until_us is None or self._events[0][0] < until_us):
            self._now, _, act, args = heapq.heappop(self._events)
            act(*args)
            self.tally.waiting(self._gate.waiting, self._now)
            if self._now - shown > SECOND:
                shown = self._now
                progress(shown)
        end = self._now if until_us is None else until_us
        self.tally.close(end)
        return end

    def rest(self) -> None:
        """Let the budgets be open for as long as they need to be full, before anything comes."""
        longest_s = max(term.allowed.window_s + 2 * term.allowed.late_s for term in self._setup.terms)
        for index in range(len(self._providers)):
            self.budgets.look(index, EPOCH_US - 3 * round(longest_s * SECOND))

    def clock(self) -> int:
        """Now as the arithmetic sees it."""
        return EPOCH_US + self._now

    def _at(self, at: int, act: Callable[..., None], *args: object) -> None:
        heapq.heappush(self._events, (at, next(self._number), act, args))

    def _next_arrival(self) -> None:
        asked = next(self._arrivals, None)
        if asked is not None:
            self._at(asked.at_us, self._arrived, asked, True)

    def _come(self, more: Sequence[Asked]) -> None:
        for asked in more:
            self._at(max(asked.at_us, self._now), self._arrived, asked, False)

    def _arrived(self, asked: Asked, of_itself: bool) -> None:
        if of_itself:
            self._next_arrival()
        self._decide(asked)

    def _decide(self, asked: Asked) -> None:
        decision = self._gate.admit(asked, self.clock())
        if decision in ("premium", "edge"):
            self._served(decision, asked)
        elif decision == "deferred":
            if self._gate.leads(asked) or self._overdue:
                self._drain()
        else:
            self.tally.refused(decision)
            self._come(self._traffic.answered(asked, self._now))

    def _due(self, asked: Asked) -> None:
        self._gate.ready(asked)
        self._drain()

    def _drain(self) -> None:
        moves, wait_us = self._gate.drain(self.clock())
        for route, asked in moves:
            self._served(route, asked)
        if not math.isfinite(wait_us):
            return
        wake_at = self._now + max(1, math.ceil(wait_us)) + _WAKE_US
        if self._wake_at is None or wake_at < self._wake_at:
            self._wake_at = wake_at
            self._at(wake_at, self._woken, wake_at)

    @property
    def _overdue(self) -> bool:
        """Whether a wait is over, and only its timer isn't yet."""
        return self._wake_at is not None and self._now >= self._wake_at - _WAKE_US

    def _woken(self, wake_at: int) -> None:
        if wake_at == self._wake_at:  # else an earlier one has taken its place
            self._wake_at = None
            self._drain()

    def _served(self, route: str, asked: Asked) -> None:
        if asked.attempt == 1:
            self.tally.served(asked.rank, route, (self._now - asked.at_us) / SECOND, deferred=asked.deferred)
        self._come(self._traffic.granted(asked, self._now))
        if route == "edge":
            took_us = _microseconds(self._edge.draw(self._random))
            self.tally.first_tokens[asked.rank].add((self._now - asked.at_us + took_us) / SECOND)
            self._at(self._now + took_us, self._edge_ended, asked)
            return
        # The worker starts a call within half of J, or not at all; the other half is for the way.
        delay = self._delay(self._late_us[asked.deployment])
        asked.sent_us = self.clock() + min(delay // 2, self._setup.terms[asked.deployment].start_within_us)
        self._at(self._now + delay, self._counted, asked)

    def _delay(self, late_us: int) -> int:
        self._granted += 1
        kind = self._setup.delays
        if kind == "extremes" or (kind == "mixed" and self._granted % 4 < 2):
            return late_us if self._granted % 2 else 0
        return self._random.randint(1, late_us)

    def _counted(self, asked: Asked) -> None:
        """The call reaches the provider's counter."""
        provider, now_s = self._providers[asked.deployment], self._now / SECOND
        receipt = provider.charge(asked.cost, now_s)
        if self.tally.seconds is not None:
            self.tally.seconds.count(now_s, admitted=receipt.verdict.admitted)
        if not receipt.verdict.admitted:
            self._at(self._now + _BACK_US, self._refused, asked, receipt)
            return
        first_us = _microseconds(self._ttft.draw(self._random))
        ends_us = first_us + _microseconds(asked.used / self._setup.tokens_per_s)
        if asked.attempt == 1:
            self.tally.first_tokens[asked.rank].add((self._now - asked.at_us + first_us) / SECOND)
        if self._hears[asked.deployment]:
            self._at(self._now + first_us, self._heard, asked, receipt)
        self._at(self._now + ends_us, self._ended, asked, receipt)

    def _heard(self, asked: Asked, receipt: Receipt) -> None:
        for header in receipt.headers:
            own = asked.cost[header.name]
            alarm = self.budgets.heard(asked.deployment, self.clock(), header, sent_at=asked.sent_us, own=own)
            if alarm:
                self.tally.alarm(alarm, self._now / SECOND)

    def _ended(self, asked: Asked, receipt: Receipt) -> None:
        self._providers[asked.deployment].ended(receipt, asked.unused, self._now / SECOND)
        full = self._gate.full
        more = self.budgets.settle(
            asked.deployment,
            self.clock(),
            prompt=asked.prompt,
            output=asked.output,
            used=asked.used,
            granted_at=asked.granted_us,
        )
        self._gate.ended("premium")
        self._come(self._traffic.answered(asked, self._now))
        if more or full or self._overdue:  # else whoever waits must wait as long as before, and is timed already
            self._drain()

    def _refused(self, asked: Asked, receipt: Receipt) -> None:
        """A 429: everything pauses, and the request comes again when the provider said, as a further attempt."""
        wait_s = receipt.verdict.wait_s
        till = self._now + max(_RETRY_AT_LEAST_US, math.ceil((wait_s if math.isfinite(wait_s) else 0) * SECOND))
        self.budgets.refused(asked.deployment, self.clock(), till=EPOCH_US + till, granted_at=asked.granted_us)
        self._gate.ended("premium")
        if asked.attempt >= self._setup.most_attempts or not math.isfinite(wait_s):
            self.tally.given_up += 1
            self._come(self._traffic.answered(asked, self._now))
        else:
            self._gate.retry(asked)
            self._at(till, self._due, asked)
        self._drain()

    def _edge_ended(self, asked: Asked) -> None:
        self._gate.ended("edge")
        self._come(self._traffic.answered(asked, self._now))
        self._drain()

    def _sample(self) -> None:
        assert self.tally.seconds is not None
        looks = [self.budgets.look(index, self.clock()).level for index in range(len(self._providers))]
        self.tally.seconds.level.append(min(looks))
        if self._events:
            self._at(self._now + SECOND, self._sample)


def _microseconds(seconds: float) -> int:
    return round(seconds * SECOND)
