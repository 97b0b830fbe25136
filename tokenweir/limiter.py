"""The shared budget alone, for programs that make their own calls.

A grant is a charge in Redis, shared with the pipeline's workers and with every other limiter of the pool. It says
that one call may start now. What Redis doesn't grant isn't granted: there is no counter in this process to fall back
to. How callers wait is in `tokenweir.desk`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from operator import index
from types import TracebackType
from typing import Any, Final, Self

from tokenweir.connection import Connection, connect
from tokenweir.desk import FAILED, NEVER_MADE, REFUSED, UNKNOWN, USED, Desk
from tokenweir.errors import ConfigError
from tokenweir.keys import CLASSES, Keys
from tokenweir.shared_limits import SharedLimits, as_allowed
from tokenweir.wire import Class

__all__ = ["Grant", "Limiter"]

# In which form amounts were given.
_TOTAL, _APART, _NOTHING = range(3)
_RANKS: Final = {name: rank for rank, name in enumerate(CLASSES)}
# Below what a float holds exactly, above what any provider allows.
_MOST_TOKENS: Final = 10**12
_LONGEST_S: Final = 1e9
_LONGEST_PAUSE_S: Final = 86_400.0
_FLUSH_S: Final = 5.0
_NUMBERS: Final = (int, float)


class Grant:
    """One call's share of the budget: made by `Limiter.reserve`, granted on entering the `async with` block.

    Leaving the block without `settle`, `cancel` or `refused` means that the call may have been made: what was
    reserved stays charged. Only one of the three counts, and only inside of the block.
    """

    # fmt: off
    __slots__ = (
        "_caller", "_desk", "_form", "_limiter", "_open", "_output", "_prompt", "_rank", "_wait_s", "deployment",
    )
    # fmt: on

    def __init__(self, limiter: Limiter, *, rank: int, prompt: int, output: int, form: int, wait_s: float) -> None:
        self.deployment = ""
        self._limiter = limiter
        self._rank = rank
        self._prompt = prompt
        self._output = output
        self._form = form
        self._wait_s = wait_s
        self._open = False

    async def __aenter__(self) -> Self:
        limiter = self._limiter
        if self._open or self.deployment:
            raise RuntimeError("a grant can be entered once: reserve another")
        desk = limiter._desk or await limiter._start()
        limiter._check(self._form)
        deadline = time.monotonic() + self._wait_s
        caller = desk.enter(self._rank, self._prompt, self._output, deadline)
        while True:
            in_time = False
            try:
                await caller.granted
                in_time = time.monotonic() - caller.asked_at <= limiter._limits.call_within_s[caller.place]
            finally:
                if not in_time:
                    desk.leave(caller)
            if in_time:
                break
            # This process was too busy to take it in time: the call would count in another window.
            caller = desk.enter(self._rank, self._prompt, self._output, deadline, first=True)
        self._caller, self._desk, self._open = caller, desk, True
        self.deployment = limiter._limits.deployments[caller.place]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._open:
            self._end(UNKNOWN if kind is None else FAILED)

    def settle(
        self, *, tokens: int | None = None, prompt_tokens: int | None = None, output_tokens: int | None = None
    ) -> None:
        """Say what the call has used. Unused tokens come back where the provider gives them back; more is charged.

        Raises:
            ValueError: it has ended already, or these can't be numbers of tokens.
        """
        prompt, output, form = _amounts(tokens, prompt_tokens, output_tokens)
        self._limiter._check(form)
        self._end(USED, prompt, output)

    def cancel(self) -> None:
        """Give all of it back: no call was made, and none will be.

        Raises:
            ValueError: it has ended already.
        """
        self._end(NEVER_MADE)

    def refused(self, *, retry_after_s: float = 1.0) -> None:
        """The provider answered 429: nobody gets this deployment for so long. What was reserved stays charged.

        Raises:
            ValueError: it has ended already, or the time can't be.
        """
        self._end(REFUSED, round(min(_seconds("retry_after_s", retry_after_s), _LONGEST_PAUSE_S) * 1e6))

    def _end(self, how: int, first: int = 0, second: int = 0) -> None:
        if not self._open:
            raise ValueError("this grant has ended: settle, cancel or refused count once, inside of the block")
        self._open = False
        self._desk.end(self._caller, how, first, second)


class Limiter:
    """One process's share in a pool's budget, for any number of coroutines of one event loop.

    Make it and use it inside one running event loop, after any fork; `async with` closes it. It uses at most two
    connections. Callers of one class are served first come, first served, the classes in their order; a large one
    isn't starved by small ones.

    Args:
        url: `redis://`, `redis+sentinel://`, `redis+cluster://`, each with `rediss` for TLS, or `unix://`.
        pool: the pool's name in the workers' configuration.
        prefix: what all its keys begin with, as configured there.
        limits: by deployment, the fields of `tokenweir.terms.Allowed`, e.g. `{"primary": {"rpm": 500, "tpm":
            30_000}}`. They are put in place where none are, and again after Redis was emptied. None: those that the
            workers have put there.
        deployments: use only these; None = all of the pool, or of `limits`.

    Raises:
        ConfigError: an argument can't be used; on entering: the pool has no limits.
    """

    def __init__(
        self,
        url: str,
        *,
        pool: str = "main",
        prefix: str = "tokenweir",
        limits: Mapping[str, Mapping[str, Any]] | None = None,
        deployments: Iterable[str] | None = None,
    ) -> None:
        try:
            keys = Keys(pool, prefix=prefix)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        given = as_allowed(limits) if limits is not None else None
        self._connection = Connection(connect(url, max_connections=2), keys)
        self._limits = SharedLimits(self._connection, given, deployments if deployments is not None else given)
        self._desk: Desk | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Write what isn't written yet, for at most five seconds, and close the connections. Harmless twice.

        Callers that still wait get a RuntimeError.
        """
        self._closed = True
        try:
            if self._desk:
                await self._desk.aclose(within_s=_FLUSH_S)
        finally:
            await self._connection.aclose()

    def reserve(
        self,
        *,
        tokens: int | None = None,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        priority: Class = "interactive",
        wait_s: float | None = None,
    ) -> Grant:
        """One call's share of the budget, for `async with`: entering waits until every limit has room for it.

        Args:
            tokens: the most that prompt and answer may have together; or `prompt_tokens` and `output_tokens`, which
                pools with a limit for either need.
            priority: `interactive`, `standard` or `batch`; the lower ones leave a share of the budget to the others.
            wait_s: the longest to wait; 0 = decide at once, None = as long as it takes.

        Raises:
            ValueError: an argument can't be.
            RequestError: on entering: it could never fit (`too_large_for_limit`).
            LimitReached: on entering: there was no room in time; `retry_after_s` says when there may be.
            StoreUnavailable: on entering: Redis doesn't answer or refuses, for `wait_s` (at least a second, at most
                half a minute). Nothing is granted then.
        """
        prompt, output, form = _amounts(tokens, prompt_tokens, output_tokens)
        rank = _RANKS.get(priority, -1)
        if rank < 0:
            raise ValueError(f"priority {priority!r} is none of {', '.join(CLASSES)}")
        longest_s = math.inf if wait_s is None else _seconds("wait_s", wait_s)
        return Grant(self, rank=rank, prompt=prompt, output=output, form=form, wait_s=longest_s)

    async def _start(self) -> Desk:
        if self._closed:
            raise RuntimeError("the limiter is closed")
        await self._limits.open()
        if not self._desk:
            self._desk = Desk(self._limits)
        return self._desk

    def _check(self, form: int) -> None:
        """Whether amounts given in this form say enough for the pool's limits."""
        if form == _TOTAL and self._limits.splits_tokens:
            raise ValueError("this pool limits prompt and output apart: give prompt_tokens= and output_tokens=")
        if form == _NOTHING and self._limits.counts_tokens:
            raise ValueError("this pool limits tokens: give tokens=, or prompt_tokens= and output_tokens=")


def _amounts(tokens: int | None, prompt_tokens: int | None, output_tokens: int | None) -> tuple[int, int, int]:
    """Tokens in prompt and output, and in which form they were given."""
    if prompt_tokens is None and output_tokens is None:
        return (0, 0, _NOTHING) if tokens is None else (_whole("tokens", tokens), 0, _TOTAL)
    if tokens is not None:
        raise ValueError("give tokens=, or prompt_tokens= and output_tokens=, not both")
    return _whole("prompt_tokens", prompt_tokens), _whole("output_tokens", output_tokens), _APART


def _whole(name: str, amount: int | None) -> int:
    if type(amount) is not int:
        try:
            if amount is None or isinstance(amount, bool):
                raise TypeError
            amount = index(amount)  # what other libraries call an integer
        except TypeError:
            raise ValueError(f"{name} must be a whole number, not {amount!r}") from None
    if not 0 <= amount <= _MOST_TOKENS:
        raise ValueError(f"{name} must be between 0 and {_MOST_TOKENS:,}, not {amount}")
    return amount


def _seconds(name: str, seconds: float) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, _NUMBERS) or not 0 <= seconds <= _LONGEST_S:
        raise ValueError(f"{name} must be a number of seconds between 0 and {_LONGEST_S:,.0f}, not {seconds!r}")
    return float(seconds)
