"""Anything may happen to a budget, in any order: what a provider can hold of it never exceeds what is allowed."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tests.script.arithmetic import Arithmetic, Memory, limits_of, warm

SECOND_US = 1_000_000
NAMES = ("rpm", "tpm")


class Grant:
    """A grant as the provider sees it: when it was, and what it holds of each limit now; `at` is the server's word."""

    def __init__(self, at: int, real: int, tokens: int) -> None:
        self.at, self.real = at, real
        self.reserved = {"rpm": 1, "tpm": tokens}
        self.holds = dict(self.reserved)


class AnyOrder(RuleBasedStateMachine):
    """Grants, refunds, give-backs, pauses, clocks that jump, replicas that lag, and the loss of everything."""

    grants = Bundle("grants")
    budget: Arithmetic
    now: int

    @initialize(enforcement=st.sampled_from(["auto", "continuous"]), policy=st.sampled_from(["none", "refund"]))
    def begin(self, enforcement: str, policy: str) -> None:
        self.limits = limits_of(rpm=20, tpm=2_000, enforcement=enforcement)
        self.refunds = policy == "refund"
        self.budget, self.now = warm(*self.limits, settlement=policy)
        self.budget.wait(self.now, {"rpm": 0})
        self.charges: list[Grant] = []
        self.memories: dict[str, Memory] = {}
        self.replica: Any = self.budget.snapshot()
        self.servers = 0
        self.back = 0  # by how much the server's clock is behind the time that has passed

    @rule(us=st.one_of(st.integers(0, SECOND_US), st.integers(0, 70 * SECOND_US)))
    def time_passes(self, us: int) -> None:
        self.now += us

    @rule(us=st.integers(0, 5 * SECOND_US))
    def the_clock_steps_back(self, us: int) -> None:
        self.now -= us
        self.back += us

    @rule(
        target=grants,
        tokens=st.one_of(st.integers(1, 100), st.integers(1, 200), st.integers(1, 2_001)),
        rank=st.integers(0, 2),
    )
    def ask(self, tokens: int, rank: int) -> Grant | None:
        return self._ask(tokens, rank)

    @rule(tokens=st.sampled_from([1, 40, 100, 190, 1_000]), seconds=st.integers(1, 70))
    def they_ask_for_all_they_can_get(self, tokens: int, seconds: int) -> None:
        until = self.now + seconds * SECOND_US
        while self.now < until:
            if self._ask(tokens, 0) is None:
                wait_us = self.budget.wait(self.now, {"rpm": 1, "tpm": tokens})
                self.now += int(min(wait_us, until - self.now)) or 1

    def _ask(self, tokens: int, rank: int) -> Grant | None:
        """A grant, or nothing at all has changed."""
        before = self._figures()
        if self.budget.acquire(self.now, {"rpm": 1, "tpm": tokens}, rank) > 0:
            assert self._figures() == before
            return None
        grant = Grant(self._at(), self.now + self.back, tokens)
        self.charges.append(grant)
        for place, name in enumerate(NAMES, 1):
            self.memories[name] = self.budget.remember(self.now, name, place)
        for limit in self.limits:
            since = grant.real - limit.window_us - limit.late_us
            held = sum(one.holds[limit.name] for one in self.charges if one.real > since)
            assert held <= limit.limit, f"{held} of {limit.limit} {limit.name} in one window"
        return grant

    @rule(grant=consumes(grants), share=st.sampled_from([0.0, 0.3, 1.0, 1.2]))
    def it_ends(self, grant: Grant | None, share: float) -> None:
        """The call used less, as much, or more than was reserved for it."""
        if grant is None:
            return
        used = {"rpm": 1, "tpm": int(grant.reserved["tpm"] * share)}
        self.budget.settle(self.now, grant.reserved, used, grant.at)
        if used["tpm"] > grant.reserved["tpm"]:
            more = Grant(self._at(), self.now + self.back, used["tpm"] - grant.reserved["tpm"])
            more.holds["rpm"] = 0
            self.charges.append(more)
        elif self.refunds:
            grant.holds["tpm"] = used["tpm"]

    @rule(grant=consumes(grants))
    def it_is_given_back(self, grant: Grant | None) -> None:
        """The call was never made."""
        if grant is not None:
            self.budget.uncharge(self.now, grant.reserved, grant.at)
            grant.holds = dict.fromkeys(NAMES, 0)

    @rule(grant=consumes(grants), wait_us=st.integers(1, 20 * SECOND_US))
    def it_is_refused(self, grant: Grant | None, wait_us: int) -> None:
        if grant is not None:
            self.budget.refused(self.now, grant.at, wait_us)

    @rule()
    def a_replica_catches_up(self) -> None:
        self.replica = self.budget.snapshot()

    @rule()
    def a_replica_takes_over(self) -> None:
        """With the state that it has; every worker tells what it saw before anything is granted."""
        self.servers += 1
        self.budget.move(f"server {self.servers}", self.replica)
        self._tell()

    @rule()
    def everything_is_lost(self) -> None:
        self.budget.lose()
        self.budget.wait(self.now, {"rpm": 0})
        self._tell()
        self.replica = self.budget.snapshot()

    @invariant()
    def what_is_kept_adds_up(self) -> None:
        if hasattr(self, "budget"):
            for place in range(1, len(NAMES) + 1):
                used, charges = self.budget.window(self.now, place)
                assert used == sum(charges)
                assert min(charges) >= 0
                assert self.budget.level(self.now, place) <= self.limits[place - 1].capacity

    def _tell(self) -> None:
        for name, memory in self.memories.items():
            self.budget.seen(self.now, name, memory)

    def _at(self) -> int:
        return int(self.budget.stored("at"))

    def _figures(self) -> list[float]:
        return [
            figure
            for place in (1, 2)
            for figure in (self.budget.level(self.now, place), self.budget.used(self.now, place))
        ]


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
