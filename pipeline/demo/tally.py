"""What has happened to the requests of one run so far, and what it comes to in the end. Pure: moments are arguments."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from pipeline.demo.figures import percentile

Way = Literal["premium", "edge", "deferred"]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One run, measured. Times are seconds of the demo; the story's length and scale stand in `minute_s`.

    Attributes:
        provider_429, provider_calls: by the provider's own ledger.
        answered: ended in an answer. lost: submitted, and without a terminal result at the end.
        duplicates: requests with more than one terminal result.
        premium, edge, deferred: answered at once by either model, or after a wait in the backlog.
        ttft: from a user's wish to the first token, all users; `ttft_now`: of those answered at once.
        added_wait: what we add before the model is called, of users' requests answered at once.
        used_ratio: of the budget, by the ledger, over `windows` whole windows in which work was waiting.
        per_second: (second of the run, admitted, rejected).
    """

    provider_429: int = 0
    requests: int = 0
    answered: int = 0
    lost: int = 0
    duplicates: int = 0
    premium: int = 0
    edge: int = 0
    deferred: int = 0
    ttft_p50_s: float = 0.0
    ttft_p99_s: float = 0.0
    added_wait_p50_s: float = 0.0
    added_wait_p99_s: float = 0.0
    used_ratio: float = 0.0
    minute_s: float = 0.0
    seconds: float = 0.0
    ttft_now_p50_s: float = 0.0
    ttft_now_p99_s: float = 0.0
    provider_calls: int = 0
    errors: int = 0
    windows: int = 0
    user_requests: int = 0
    user_edge: int = 0
    user_deferred: int = 0
    per_second: Sequence[tuple[int, int, int]] = ()


class Tally:
    """Counts a run. Written only by the tasks of one event loop.

    Attributes:
        errors: terminal results that aren't answers.
        waiting: (moment, how many requests waited), in the order of time.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.user_requests = 0
        self.answered = 0
        self.errors = 0
        self.ways: Counter[Way] = Counter()
        self.user_ways: Counter[Way] = Counter()
        self.waiting: list[tuple[float, int]] = []
        self._unheard: dict[str, float] = {}  # users' requests without a first token: when they were wished
        self._unanswered: set[str] = set()
        self._ttfts: list[float] = []
        self._ttfts_now: list[float] = []
        self._added: list[float] = []

    def wished(self, request_id: str, at_s: float, *, batch: bool) -> None:
        """Somebody wants an answer."""
        self.requests += 1
        self._unanswered.add(request_id)
        if not batch:
            self.user_requests += 1
            self._unheard[request_id] = at_s

    def heard(self, request_id: str, at_s: float) -> None:
        """The first token has come; of requests of the batch job, where nobody waits for it, this is nothing."""
        wished_s = self._unheard.pop(request_id, None)
        if wished_s is not None:
            self._ttfts.append(at_s - wished_s)

    def ended(self, request_id: str, *, well: bool = True) -> None:
        """The terminal result has come."""
        self._unanswered.discard(request_id)
        self.answered += well
        self.errors += not well

    def went(self, way: Way, *, ttft_s: float, added_s: float, batch: bool) -> None:
        """Which way an answer took."""
        self.ways[way] += 1
        if batch:
            return
        self.user_ways[way] += 1
        if way != "deferred":
            self._ttfts_now.append(ttft_s)
            self._added.append(added_s)

    @property
    def unanswered(self) -> int:
        return len(self._unanswered)

    def ttfts(self, now_s: float) -> Iterator[float]:
        """Times to the first token. Who still waits for theirs counts with the wait so far, which is too little."""
        yield from self._ttfts
        yield from (now_s - wished_s for wished_s in self._unheard.values())

    def side(self, now_s: float) -> Side:
        """All that is known here; what only the ledger or the result stream knows is left at 0."""
        ttfts = list(self.ttfts(now_s))
        return Side(
            requests=self.requests,
            answered=self.answered,
            lost=self.unanswered,
            errors=self.errors,
            premium=self.ways["premium"],
            edge=self.ways["edge"],
            deferred=self.ways["deferred"],
            user_requests=self.user_requests,
            user_edge=self.user_ways["edge"],
            user_deferred=self.user_ways["deferred"],
            ttft_p50_s=percentile(ttfts, 0.5),
            ttft_p99_s=percentile(ttfts, 0.99),
            ttft_now_p50_s=percentile(self._ttfts_now, 0.5),
            ttft_now_p99_s=percentile(self._ttfts_now, 0.99),
            added_wait_p50_s=percentile(self._added, 0.5),
            added_wait_p99_s=percentile(self._added, 0.99),
        )
