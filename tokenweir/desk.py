"""Where the callers of one process wait for budget: many callers, one question to Redis at a time.

While a question is on its way, callers and endings gather; the next one carries them all. So a single caller waits
for nothing, a thousand share a round trip, and no timer is needed. A question whose reply was lost is asked again
word for word, until it is answered: the script answers it once. So whatever happens to a caller meanwhile, what it
was charged is known in the end, and is given back.

Callers are served by rank, then as they came. When the first of them doesn't fit, all of the same or a lower class
wait behind it until the time that the script named; whoever comes above is asked for at once.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import msgspec

from tokenweir.callers import NOBODY, Caller, Line
from tokenweir.connection import CALL_TIMEOUT_S
from tokenweir.errors import LimitReached, StoreUnavailable, TokenweirError
from tokenweir.shared_limits import SharedLimits

# How a call ended: lua/budget_reserve.lua.
UNKNOWN, USED, NEVER_MADE, REFUSED, FAILED = range(5)
# So much goes into one question. Of more callers some wait here while Redis decides on others: so both are at work at
# the same time, and Redis is kept from nobody for long.
_MOST_CALLERS, _MOST_ENDINGS = 64, 256
# Behind one that didn't fit a moment ago few will.
_CALLERS_AFTER_A_REFUSAL = 16
# Limits may be raised and pauses ended by others, and nobody tells us.
_LOOK_AGAIN_S = 1.0
# Who doesn't want to wait needs an answer all the same; and nobody is kept for longer than this without Redis.
_ROUND_TRIP_S, _LONGEST_OUTAGE_S = 1.0, 3 * CALL_TIMEOUT_S
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.05, 2.0


class Desk:
    """Asks and settles for all callers of one event loop; its task ends with `aclose`, or when nothing is left."""

    def __init__(self, limits: SharedLimits) -> None:
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._name = f"limiter:{secrets.token_hex(8)}"
        self._numbers = 0
        self._line = Line()
        self._endings: list[tuple[int, ...]] = []
        self._closing = False
        self._sleeper: asyncio.Future[None] | None = None
        # The rest belongs to the task.
        self._questions = 0
        self._asked: list[Caller] = []  # those of the question that is on its way
        self._asked_at = 0.0
        self._head: Caller | None = None  # it didn't fit
        self._blocked = NOBODY  # from this rank on all wait behind it, until `_free_at`
        self._free_at = 0.0
        self._free_timer: asyncio.TimerHandle | None = None
        self._soonest = math.inf  # no deadline is earlier
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._deadlines_at = math.inf  # when it looks
        self._outage: StoreUnavailable | None = None
        self._outage_since = 0.0
        self._task = asyncio.create_task(self._run(), name="tokenweir-limiter")
        self._task.add_done_callback(self._ended)

    # For callers

    def enter(self, rank: int, prompt: int, output: int, deadline: float, *, first: bool = False) -> Caller:
        """Wait for budget, or, `first`, before all others; who comes out without using it must `leave`."""
        if self._closing:
            raise RuntimeError("the limiter is closed")
        self._numbers += 1
        caller = Caller(self._numbers, rank, prompt, output, deadline, self._loop.create_future())
        if rank < self._blocked:
            self._wake()
        elif deadline <= time.monotonic():
            caller.granted.set_exception(self._no_room())
            return caller
        else:
            self._watch_deadlines(deadline)
        if deadline < self._soonest:
            self._soonest = deadline
        self._line.add(caller, first=first)
        return caller

    def leave(self, caller: Caller) -> None:
        """Give back what `caller` was charged. If it is being asked for, that is done when the answer comes."""
        self.end(caller, NEVER_MADE)
        caller.granted.cancel()
        if caller is self._head:
            self._look()

    def end(self, caller: Caller, how: int, first: int = 0, second: int = 0) -> None:
        """Have it written how the call of `caller` ended, if it was granted and hasn't ended yet."""
        if caller.place >= 0:
            self._endings.append(caller.ending(how, first, second))
            caller.place = -1
            self._wake()

    async def aclose(self, *, within_s: float) -> None:
        """Send away who still waits, and write the endings if Redis takes them within that time."""
        self._refuse_all(RuntimeError("the limiter was closed"))
        self._wake()
        try:
            await asyncio.wait([self._task], timeout=within_s)
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_ROUND_TRIP_S)
        finally:
            self._task.cancel()
            self._unblock()
            if self._deadline_timer:
                self._deadline_timer.cancel()

    def _wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    # The task

    async def _run(self) -> None:
        while True:
            callers = self._next_callers()
            if callers or self._endings:
                await self._turn(callers)
            elif self._closing:
                return
            else:
                self._sleeper = self._loop.create_future()
                await self._sleeper

    def _next_callers(self) -> list[Caller]:
        """Whom to ask for now; nobody while the first of all must wait and nothing was given back."""
        if self._blocked == NOBODY:
            return self._line.take(_MOST_CALLERS, above=NOBODY)
        return self._line.take(_CALLERS_AFTER_A_REFUSAL, above=NOBODY if self._endings else self._blocked)

    async def _turn(self, callers: list[Caller]) -> None:
        """One question and its answer, however long that takes."""
        endings, self._endings = self._endings[:_MOST_ENDINGS], self._endings[_MOST_ENDINGS:]
        self._questions += 1
        args = (self._questions, f"{self._name}:", _packed(endings), _packed([caller.question() for caller in callers]))
        began = time.monotonic()
        for caller in callers:
            caller.asked_at = began
        self._asked = callers
        retry_s = _FIRST_RETRY_S
        while True:
            self._asked_at = time.monotonic()
            self._watch_deadlines(self._asked_at + _ROUND_TRIP_S)
            try:
                times_us, answers = await self._limits.ask(self._name, args)
                break
            except StoreUnavailable as error:
                self._failed(error)
            await asyncio.sleep(retry_s * random.uniform(0.5, 1.0))
            retry_s = min(retry_s * 2, _LONGEST_RETRY_S)
        self._outage, self._asked = None, []
        if callers:
            self._hand_out(callers, times_us, answers)

    def _hand_out(self, callers: Sequence[Caller], times_us: Sequence[int], answers: Sequence[int]) -> None:
        """Tell the answers; who got none waits on at the old place, if there is time."""
        refused = answers[-1] < 0
        for caller, place in zip(callers, answers, strict=False):
            if place > 0:
                caller.place, caller.charged_at_us = place - 1, times_us[place - 1]
                if not caller.granted.done():
                    caller.granted.set_result(True)
                else:
                    self.end(caller, NEVER_MADE)  # it left meanwhile
            elif place == 0 and caller.waits:
                caller.granted.set_exception(caller.too_large())
        self._unblock()
        if refused:
            left = callers[len(answers) - 1 :]
            self._block(left[0], -answers[-1] / 1e6)
            now = time.monotonic()
            for caller in left:
                if caller.waits and caller.deadline <= now:
                    caller.granted.set_exception(self._no_room())
            self._line.put_back([caller for caller in left if caller.waits])

    def _block(self, head: Caller, wait_s: float) -> None:
        """`head` must wait, and all behind it."""
        self._head, self._blocked, self._free_at = head, head.rank, time.monotonic() + wait_s
        self._free_timer = self._loop.call_later(min(wait_s, _LOOK_AGAIN_S), self._look)
        self._watch_deadlines(self._soonest)

    def _unblock(self) -> None:
        self._head, self._blocked = None, NOBODY
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

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A mistake of ours must not leave anybody waiting."""
        if not task.cancelled() and (error := task.exception()):
            self._refuse_all(error)

    def _refuse_all(self, error: BaseException) -> None:
        self._closing = True
        for caller, _ in self._everybody():
            caller.granted.set_exception(error)

    def _everybody(self) -> Iterator[tuple[Caller, bool]]:
        """All that wait, and whether they are being asked for."""
        yield from ((caller, True) for caller in self._asked if caller.waits)
        yield from ((caller, False) for caller in self._line if caller.waits)

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
        for caller, asked in self._everybody():
            due, error = self._due(caller, now, asked=asked)
            if due <= now:
                caller.granted.set_exception(error)
            else:
                self._soonest, next_look = min(self._soonest, caller.deadline), min(next_look, due)
        self._watch_deadlines(next_look)

    def _due(self, caller: Caller, now: float, *, asked: bool) -> tuple[float, TokenweirError]:
        """Until when `caller` waits as things are, and what it is told then."""
        since = self._outage_since if self._outage else self._asked_at
        if self._outage or (self._asked and now - since >= _ROUND_TRIP_S):
            until = min(max(caller.deadline, since + _ROUND_TRIP_S), since + _LONGEST_OUTAGE_S)
            return until, self._outage or StoreUnavailable(f"no reply from Redis within {now - since:.1f} s")
        if asked or caller.rank < self._blocked:
            return now + _ROUND_TRIP_S, StoreUnavailable("")  # its answer is on the way
        return caller.deadline, self._no_room()

    def _no_room(self) -> LimitReached:
        wait_s = max(0.001, self._free_at - time.monotonic())
        return LimitReached(f"no room for another {wait_s:.3g} s", retry_after_s=wait_s)


def _packed(rows: Iterable[Iterable[int]]) -> bytes:
    """One list of numbers, as the script reads it."""
    return msgspec.msgpack.encode(list(chain.from_iterable(rows)))
