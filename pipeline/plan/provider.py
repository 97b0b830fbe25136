"""The judge of a simulation: enforces a provider's limits, and counts independently what it let through."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec

from pipeline.plan.arithmetic import Heard
from pipeline.sandbox.limits import Limits, Verdict
from pipeline.sandbox.settings import Enforcement
from tokenweir.terms import DAY_LIMITS, Allowed

# OpenAI's headers tell of requests and of tokens in all.
_TOLD: Final = ("rpm", "tpm")
_DAY_S: Final = 86_400.0


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
    counted: Mapping[str, Counted]


class Provider:
    """One deployment's account. Times are seconds from the simulation's start and never step back.

    Args:
        refunds: tokens reserved but not used are given back when a call ends; `refunds_until_s` ends that.
    """

    def __init__(
        self, allowed: Allowed, mode: Enforcement, *, seed: int, refunds: bool = False, refunds_until_s: float = math.inf
    ) -> None:
        window = {name: limit for name, limit in allowed.limits.items() if name not in DAY_LIMITS}
        day = {name: limit for name, limit in allowed.limits.items() if name in DAY_LIMITS}
        self._limits = Limits(mode, window, allowed.window_s)
        self._days = Limits("sliding", day, _DAY_S)
        self._refunds, self._refunds_until_s = refunds, refunds_until_s
        self._most_flying, self._flying = allowed.max_in_flight or math.inf, 0
        self.accounts = {name: Account(limit, allowed.window_s) for name, limit in window.items()}
        self.day_accounts = {name: Account(limit, _DAY_S) for name, limit in day.items()}
        self.rejected = 0
        self.admitted = 0

    def charge(self, cost: Mapping[str, int], now: float) -> Receipt:
        """Count a call, or refuse it and count nothing."""
        verdict = self._judge(cost, now)
        counted: dict[str, Counted] = {}
        if verdict.admitted:
            self.admitted += 1
            self._flying += 1
            for name, account in (*self.accounts.items(), *self.day_accounts.items()):
                counted[name] = account.add(now, cost[name])
        else:
            self.rejected += 1
        return Receipt(verdict, self._headers(now), counted)

    def _judge(self, cost: Mapping[str, int], now: float) -> Verdict:
        if self._flying >= self._most_flying:
            return Verdict(short="max_in_flight", wait_s=1.0)
        for name, budget in self._days.budgets.items():
            if budget.level(now) < cost[name]:
                return Verdict(short=name, wait_s=budget.wait_s(cost[name], now))
        verdict = self._limits.charge(cost, now)
        if verdict.admitted:
            self._days.charge(cost, now)
        return verdict

    def ended(self, receipt: Receipt, unused: Mapping[str, int], now: float) -> None:
        """An admitted call has ended with so much of its cost unused."""
        self._flying -= 1
        if not self._refunds or now >= self._refunds_until_s:
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
