"""Where the callers of one process wait for budget: many questions, one script call at a time.

While a call is on its way, questions and endings gather; the next call carries them all. So a single caller waits
for nothing, a thousand callers share a round trip, and no timer is needed. Nothing here knows arguments or errors of
the public API: see `tokenweir.limiter`.

A question is asked in the order of rank, then of arrival. When its head doesn't fit, all of the same or a lower
class wait behind it, until the time that the script named; whoever comes above it is asked for at once.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from lua import load
from tokenweir.connection import CALL_TIMEOUT_S
from tokenweir.errors import LimitReached, RequestError, StoreUnavailable, TokenweirError
from tokenweir.shared_limits import SharedLimits

_RESERVE, _SETTLE = load("budget_reserve"), load("budget_settle")

# How a call ended: lua/part_ending.lua.
UNKNOWN, USED, NEVER_MADE, REFUSED = range(4)
# So much goes into one call; more would keep Redis from others for too long.
_MOST_ASKED, _MOST_ENDED = 256, 500
# Behind a head that didn't fit a moment ago few will.
_ASKED_AFTER_A_REFUSAL = 16
_NOBODY: Final = 3  # below all ranks
# Limits may be raised and pauses ended by others, and nobody tells us.
_LOOK_AGAIN_S = 5.0
# Whoever doesn't want to wait still needs an answer; and nobody is kept for longer than this without Redis.
_ROUND_TRIP_S, _LONGEST_OUTAGE_S = 1.0, 3 * CALL_TIMEOUT_S
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.05, 2.0


class Ask:
    """One question for budget. `answer` becomes the place of the deployment that was charged, or an error."""

    __slots__ = ("answer", "call", "deadline", "in_flight", "output", "prompt", "rank", "sent_at", "uncertain")

    def __init__(self, *, call: int, rank: int, prompt: int, output: int, deadline: float, answer: asyncio.Future[int]):
        self.call = call
        self.rank = rank
        self.prompt = prompt
        self.output = output
        self.deadline = deadline  # monotonic; after it a refusal is final
        self.answer = answer
        self.sent_at = 0.0  # monotonic, of the first time; the grant is younger
        self.in_flight = False
        self.uncertain = False  # a reply was lost


class Desk:
    """Waits, asks and settles for all callers of one event loop. `open` first; `aclose` writes what is left."""

    def __init__(self, limits: SharedLimits) -> None:
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._prefix = f"limiter {secrets.token_hex(6)}:"  # no request's id holds a space
        self._calls = 0
        self._waiting: tuple[deque[Ask], ...] = (deque(), deque(), deque())  # by rank
        self._endings: list[str] = []
        self._asked: list[Ask] = []  # on their way
        self._asked_at = 0.0
        self._blocked = _NOBODY  # from this rank on all wait for `_free_at`
        self._free_at = 0.0
        self._free_timer: asyncio.TimerHandle | None = None
        self._soonest = math.inf  # no deadline is earlier
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._deadlines_at = math.inf  # when that timer looks
        self._outage: StoreUnavailable | None = None
        self._outage_since = 0.0
        self._closing = False
        self._sleeper: asyncio.Future[None] | None = None
        self._pump = asyncio.create_task(self._run(), name="tokenweir-limiter")
        self._pump.add_done_callback(self._ended)

    # For callers

    def ask(self, rank: int, prompt: int, output: int, deadline: float, *, again: bool = False) -> Ask:
        """Queue a question, `again` before all others; who doesn't get its `answer`, or can't use it, must `leave`."""
        if self._closing:
            raise RuntimeError("the limiter is closed")
        self._calls += 1
        ask = Ask(
            call=self._calls,
            rank=rank,
            prompt=prompt,
            output=output,
            deadline=deadline,
            answer=self._loop.create_future(),
        )
        if deadline < self._soonest:
            self._soonest = deadline
        if again:
            self._waiting[rank].appendleft(ask)
        else:
            self._waiting[rank].append(ask)
        if rank < self._blocked:
            self._wake()
        else:
            self._watch_deadlines(deadline)
        return ask

    def leave(self, ask: Ask) -> None:
        """The caller of `ask` has gone without a grant: what it was or will be charged goes back."""
        answer = ask.answer
        if (answer.done() and not answer.cancelled() and answer.exception() is None) or (
            ask.uncertain and not ask.in_flight
        ):
            self.end(ask, NEVER_MADE)
        answer.cancel()

    def end(self, ask: Ask, how: int, first: int = 0, second: int = 0) -> None:
        """Write in the background how a granted call ended."""
        self._endings.append(f"{ask.call} {how} {first} {second} {1 if ask.uncertain else 0}")
        self._wake()

    async def aclose(self, *, within_s: float) -> None:
        """Fail who still waits, and write all endings if Redis takes them in that time."""
        self._refuse_all(RuntimeError("the limiter was closed"))
        self._wake()
        try:
            await asyncio.wait([self._pump], timeout=within_s)
        finally:
            self._pump.cancel()
            for timer in (self._free_timer, self._deadline_timer):
                if timer:
                    timer.cancel()

    # The pump: everything below belongs to it

    def _wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            asks = self._next_asks()
            if not asks and not self._endings:
                if self._closing:
                    return
                self._sleeper = self._loop.create_future()
                await self._sleeper
                continue
            try:
                await self._turn(asks)
            except StoreUnavailable as error:
                self._failed(error)
                await asyncio.sleep(retry_s * random.uniform(0.5, 1.0))
                retry_s = min(retry_s * 2, _LONGEST_RETRY_S)
            else:
                self._outage, retry_s = None, _FIRST_RETRY_S

    def _next_asks(self) -> list[Ask]:
        """Who is asked for now: best rank first, then first come; nobody while the head of all must wait."""
        most = _MOST_ASKED if self._blocked == _NOBODY else _ASKED_AFTER_A_REFUSAL
        asks: list[Ask] = []
        for rank, queue in enumerate(self._waiting):
            if rank >= self._blocked and not asks and not self._endings:
                break
            while queue and len(asks) < most:
                ask = queue.popleft()
                if not ask.answer.done():
                    asks.append(ask)
        return asks

    async def _turn(self, asks: list[Ask]) -> None:
        """One script call: endings, then questions."""
        endings, self._endings = self._endings[:_MOST_ENDED], self._endings[_MOST_ENDED:]
        ended = " ".join(endings)
        now = self._asked_at = time.monotonic()
        for ask in asks:
            ask.in_flight = True
            ask.sent_at = ask.sent_at or now
        self._asked = asks
        self._watch_deadlines(now + _ROUND_TRIP_S)
        try:
            if not asks or (self._outage and endings):
                # This one runs even where Redis has no memory left.
                await self._limits.run(_SETTLE, (self._prefix, ended))
                endings, ended = [], ""
            if asks:
                asked = " ".join([f"{ask.call} {ask.rank} {ask.prompt} {ask.output}" for ask in asks])
                answers = await self._limits.run(_RESERVE, (self._prefix, ended, asked))
                self._take(asks, self._limits.answers(answers))
        except StoreUnavailable:
            self._endings = endings + self._endings
            self._keep(asks)
            raise
        finally:
            self._asked = []

    def _take(self, asks: list[Ask], answers: Sequence[int]) -> None:
        """Hand out the answers; who got none waits on at the old place."""
        granted = len(answers) - 1 if answers[-1] < 0 else len(answers)
        for ask, place in zip(asks, answers[:granted], strict=False):
            ask.in_flight = False
            if ask.answer.done():
                self.end(ask, NEVER_MADE)  # the caller left meanwhile
            elif place:
                ask.answer.set_result(place - 1)
            else:
                ask.answer.set_exception(_too_large(ask))
        self._put_back(asks[granted:])
        if answers[-1] < 0:
            self._block(asks[granted].rank, -answers[-1] / 1e6)
        else:
            self._unblock()

    def _keep(self, asks: list[Ask]) -> None:
        """Whether these were granted is unknown: ask again with the same number, or give back."""
        for ask in asks:
            ask.uncertain = True
            if ask.answer.done():
                self.end(ask, NEVER_MADE)
        self._put_back(asks)

    def _put_back(self, asks: Sequence[Ask]) -> None:
        for ask in reversed(asks):
            ask.in_flight = False
            if not ask.answer.done():
                self._waiting[ask.rank].appendleft(ask)

    def _block(self, rank: int, wait_s: float) -> None:
        self._unblock()
        self._blocked, self._free_at = rank, time.monotonic() + wait_s
        self._free_timer = self._loop.call_later(min(wait_s, _LOOK_AGAIN_S), self._look)
        self._watch_deadlines(self._soonest)

    def _unblock(self) -> None:
        self._blocked = _NOBODY
        if self._free_timer:
            self._free_timer.cancel()
            self._free_timer = None

    def _look(self) -> None:
        self._unblock()
        self._wake()

    def _failed(self, error: StoreUnavailable) -> None:
        if self._outage is None:
            self._outage_since = self._asked_at
        self._outage = error
        self._watch_deadlines(max(self._soonest, self._outage_since + _ROUND_TRIP_S))

    def _ended(self, pump: asyncio.Task[None]) -> None:
        """A mistake of ours must not leave anybody waiting."""
        if not pump.cancelled() and (error := pump.exception()):
            self._refuse_all(error)

    def _refuse_all(self, error: BaseException) -> None:
        self._closing = True
        for ask in self._everybody():
            if not ask.answer.done():
                ask.answer.set_exception(error)

    def _everybody(self) -> list[Ask]:
        return [*self._asked, *(ask for queue in self._waiting for ask in queue)]

    # Deadlines: one timer for all

    def _watch_deadlines(self, at: float) -> None:
        """Look at the deadlines at that time (monotonic), or before."""
        if at < self._deadlines_at:
            if self._deadline_timer:
                self._deadline_timer.cancel()
            self._deadlines_at = at
            self._deadline_timer = self._loop.call_later(max(0.0, at - time.monotonic()), self._expire)

    def _expire(self) -> None:
        """Answer those whose time is over, and come back for the next one."""
        self._deadline_timer, self._deadlines_at, self._soonest = None, math.inf, math.inf
        now, next_look = time.monotonic(), math.inf
        for ask in self._everybody():
            if ask.answer.done():
                continue
            due, error = self._due(ask, now)
            if due <= now:
                ask.answer.set_exception(error)
            else:
                self._soonest, next_look = min(self._soonest, ask.deadline), min(next_look, due)
        if next_look < math.inf:
            self._watch_deadlines(next_look)

    def _due(self, ask: Ask, now: float) -> tuple[float, TokenweirError]:
        """Until when `ask` waits as things are, and what it is told then."""
        if self._outage or (self._asked and now - self._asked_at >= _ROUND_TRIP_S):
            since = self._outage_since if self._outage else self._asked_at
            until = min(max(ask.deadline, since + _ROUND_TRIP_S), since + _LONGEST_OUTAGE_S)
            return until, self._outage or StoreUnavailable(f"no reply from Redis within {now - since:.1f} s")
        if ask.rank >= self._blocked and not ask.in_flight:
            wait_s = max(0.001, self._free_at - now)
            return ask.deadline, LimitReached(f"no room for another {wait_s:.3g} s", retry_after_s=wait_s)
        return now + _ROUND_TRIP_S, StoreUnavailable("")  # its answer is on the way


def _too_large(ask: Ask) -> RequestError:
    return RequestError(
        f"{ask.prompt + ask.output} tokens are more than any deployment may ever grant", code="too_large_for_limit"
    )
