"""The judge of a simulation: enforces a provider's limits, and counts independently what it let through."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Final, cast

import msgspec

from pipeline.plan.arithmetic import Heard
from pipeline.plan.asked import Cost
from pipeline.sandbox.foreign import ForeignLoad
from pipeline.sandbox.limits import DAYS, Dimension, Limits, Verdict
from pipeline.sandbox.settings import Enforcement
from tokenweir.terms import Allowed

# OpenAI's headers tell of requests and of tokens in all.
_TOLD: Final = ("rpm", "tpm")
_DAY_S: Final = 86_400.0
_BUCKETS: Final = ("bucket", "bucket/6")


class Counted(msgspec.Struct):
    """An admitted call as the account holds it: when it was counted, and for how much."""

    at_s: float
    amount: int


class Account:
    """What one limit let through: the fullest trailing window ever, and the use of each whole window since the start.

    It shares no arithmetic with the judge or the gate, so that a fault of theirs shows here.
    """

    def __init__(self, limit: int, window_s: float) -> None:
        self._limit, self._window_s = limit, window_s
        self._inside: deque[Counted] = deque()
        self._sum = 0
        self._worst = 0
        self.windows: list[int] = []

    def add(self, now: float, amount: int) -> Counted:
        while self._inside and self._inside[0].at_s <= now - self._window_s:
            self._sum -= self._inside.popleft().amount
        counted = Counted(now, amount)
        self._inside.append(counted)
        self._sum += amount
        self._worst = max(self._worst, self._sum)
        self._note(now, amount)
        return counted

    def give_back(self, counted: Counted, amount: int, now: float) -> None:
        """The provider counts `amount` less of a call from now on."""
        counted.amount -= amount
        self._note(counted.at_s, -amount)
        if self._inside and self._inside[0].at_s <= counted.at_s:
            self._sum -= amount

    def _note(self, now: float, amount: int) -> None:
        window = int(now // self._window_s)
        self.windows += [0] * (window + 1 - len(self.windows))
        self.windows[window] += amount

    @property
    def worst_ratio(self) -> float:
        return self._worst / self._limit

    def used_ratio(self, window: int) -> float:
        """The use of one window, counted from the start."""
        return self.windows[window] / self._limit if window < len(self.windows) else 0.0


class Receipt(msgspec.Struct, frozen=True):
    """What the provider answered at once: a verdict, and its headers."""

    verdict: Verdict
    headers: tuple[Heard, ...]
    counted: Mapping[Dimension, Counted]


class Provider:
    """One deployment's account. Times are seconds from the simulation's start and never step back.

    Attributes:
        accounts: what came from us, by limit. foreign: what other programs on the same key got, by limit.
        stored: what stood in the bucket at each window's beginning, by limit, as a share of the limit; a provider that
            counts otherwise stores nothing from one window for the next.
        rejected, admitted: calls of ours.
    Args:
        refunds_from_s, refunds_until_s: between these, tokens reserved but not used come back when a call ends.
        foreign_share: of the limits, that other programs on the key take.
    """

    def __init__(
        self,
        allowed: Allowed,
        mode: Enforcement,
        *,
        seed: int,
        refunds_from_s: float = math.inf,
        refunds_until_s: float = math.inf,
        foreign_share: float = 0.0,
    ) -> None:
        limits = cast("dict[Dimension, int]", dict(allowed.limits))
        judged = limits | ({"max_in_flight": allowed.max_in_flight} if allowed.max_in_flight else {})
        self._limits = Limits(mode, judged, allowed.window_s, seed=seed)
        self._refunds_from_s, self._refunds_until_s = refunds_from_s, refunds_until_s
        self._window_s, self._stores = allowed.window_s, mode in _BUCKETS
        self.stored: dict[Dimension, list[float]] = {name: [] for name in limits}
        self.accounts, self.foreign = (
            {name: Account(limit, _DAY_S if name in DAYS else allowed.window_s) for name, limit in limits.items()}
            for _ in range(2)
        )
        self._others = foreign_share > 0 and ForeignLoad(
            share=foreign_share,
            mean_tokens=_foreign_tokens(allowed),
            limits=judged,
            window_s=allowed.window_s,
            seed=seed,
        )
        self.rejected = 0
        self.admitted = 0

    def charge(self, cost: Cost, now: float) -> Receipt:
        """Count a call, or refuse it and count nothing."""
        self.come_to(now)
        verdict = self._limits.charge(cost, now)
        counted: dict[Dimension, Counted] = {}
        if verdict.admitted:
            self.admitted += 1
            counted = {name: account.add(now, cost[name]) for name, account in self.accounts.items()}
        else:
            self.rejected += 1
        return Receipt(verdict, self._headers(now), counted)

    def come_to(self, now: float) -> None:
        """Let happen what happens without us: other programs on the key come first, and windows begin."""
        begun = next(iter(self.stored.values()))
        while (begins := len(begun) * self._window_s) <= now:
            self._let_others(math.nextafter(begins, 0.0))
            for name, levels in self.stored.items():
                budget = self._limits.budgets[name]
                levels.append(budget.level(begins) / budget.limit if self._stores else 0.0)
        self._let_others(now)

    def _let_others(self, now: float) -> None:
        if not self._others:
            return
        before = (self._others.count.admitted, self._others.count.tokens)
        self._others.charge_until(self._limits, now)
        got: Cost = {"rpm": self._others.count.admitted - before[0], "tpm": self._others.count.tokens - before[1]}
        for name in got.keys() & self.foreign.keys():
            self.foreign[name].add(now, got[name])

    def ended(self, receipt: Receipt, unused: Cost, now: float) -> None:
        """An admitted call has ended with so much of its cost unused."""
        self.come_to(now)
        self._limits.end_call(now)
        if not self._refunds_from_s <= now < self._refunds_until_s:
            return
        first = next(iter(receipt.counted.values()))
        self._limits.refund(unused, first.at_s, now)
        for name, account in self.accounts.items():
            if unused[name]:
                account.give_back(receipt.counted[name], unused[name], now)

    def _headers(self, now: float) -> tuple[Heard, ...]:
        return tuple(
            Heard(name, max(0, math.floor(budget.level(now))), budget.limit, math.ceil(budget.full_s(now) * 1e6))
            for name, budget in self._limits.budgets.items()
            if name in _TOLD
        )


def _foreign_tokens(allowed: Allowed) -> int:
    """The mean size of other programs' calls: one that takes the same share of both limits."""
    requests, tokens = allowed.limits.get("rpm"), allowed.limits.get("tpm")
    return max(1, tokens // requests) if tokens and requests else max(1, (tokens or 50_000) // 100)
