"""The pure arithmetic of a budget in Redis's own Lua (5.1), on a clock the test sets, and a naive model of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
from lupa import lua51

from lua import part
from pipeline.config import Deployment
from pipeline.limits import terms
from tokenweir.terms import Limit

START_US = 1_700_000_000_000_000  # sixteen digits, as Redis's clock has them today
Cost = Mapping[str, int]

# Every step goes through copies, as it does through Redis in the scripts.
_DRIVER = """
local kept, term, state
local server = 'first'
local function copy(value)
  if type(value) ~= 'table' then return value end
  local made = {}
  for name, inner in pairs(value) do made[name] = copy(inner) end
  return made
end
local function open(now) state = budget.open(copy(kept), term, now, server) end
local function save() kept = copy(budget.saved(state)) end
return {
  terms = function(given) term = given end,
  lose = function() kept = nil end,
  look = function(now) open(now); save(); return state end,
  stored = function(name, of) if of then return kept.limits[of][name] end; return kept[name] end,
  wait = function(now, cost, rank) open(now); local us = budget.wait(state, cost, rank); save(); return us end,
  acquire = function(now, cost, rank)
    open(now)
    local us = budget.wait(state, cost, rank)
    if us <= 0 then budget.charge(state, cost) end
    save()
    return us, state.now
  end,
  move = function(name, lost) server = name; kept = lost or kept end,
  copy = function() return copy(kept) end,
  ask = function(now, name, ...) open(now); local reply = budget[name](state, ...); save(); return reply end,
  charge = function(now, cost) open(now); budget.charge(state, cost); save() end,
  uncharge = function(now, cost, at) open(now); budget.uncharge(state, cost, at); save() end,
  pause = function(now, till) open(now); budget.pause(state, till, now, '', false); save() end,
}
"""


def limits_of(**settings: Any) -> tuple[Limit, ...]:
    """The limits of a deployment with these settings."""
    return terms(Deployment(**settings)).limits


class Arithmetic:
    """A budget of these limits; `text` stands in place of lua/part_budget.lua, `learning` of lua/part_feedback.lua.

    Args:
        settings: the other terms: settlement, max_in_flight, feedback.
    """

    def __init__(
        self, limits: Sequence[Limit], *, text: str | None = None, learning: str | None = None, **settings: Any
    ) -> None:
        self._lua = lua51.LuaRuntime()
        self._driver = self._lua.execute((text or part("budget")) + (learning or part("feedback")) + _DRIVER)
        self._settings = {"settlement": "auto", "max_in_flight": 0, "feedback": False} | settings
        self.change(limits)

    def change(self, limits: Sequence[Limit]) -> None:
        """Other limits from now on, as after an operator's change."""
        term = self._settings | {"limits": msgspec.to_builtins(list(limits))}
        self._driver.terms(self._lua.table_from(term, recursive=True))

    def lose(self) -> None:
        """Forget everything, as after FLUSHALL."""
        self._driver.lose()

    def acquire(self, now: int, cost: Cost, rank: int = 0) -> float:
        """Take `cost`; returns 0, or the wait in us and nothing was taken."""
        wait_us, _ = self._driver.acquire(now, self._cost(cost), rank)
        return float(wait_us)

    def wait(self, now: int, cost: Cost, rank: int = 0) -> float:
        return float(self._driver.wait(now, self._cost(cost), rank))

    def charge(self, now: int, cost: Cost) -> None:
        self._driver.charge(now, self._cost(cost))

    def uncharge(self, now: int, cost: Cost, granted_at: int) -> None:
        self._driver.uncharge(now, self._cost(cost), granted_at)

    def pause(self, now: int, until: int) -> None:
        self._driver.pause(now, until)

    def refused(self, now: int, granted_at: int, wait_us: int) -> None:
        """A call was refused for its rate."""
        self._driver.ask(now, "pause", now + wait_us, granted_at, "provider_429", True)

    def settle(self, now: int, reserved: Cost, used: Cost | None, granted_at: int) -> None:
        """A call was answered."""
        self._driver.ask(now, "settle", self._cost(reserved), self._cost(used) if used else None, granted_at)
        self._driver.ask(now, "passed", granted_at)

    def heard(self, now: int, name: str, left: int, of: int, reset_us: float, sent_at: int, own: int = 0) -> str | None:
        """Headers came; returns the alarm."""
        alarm: str | None = self._driver.ask(now, "heard", name, left, of, reset_us, sent_at, own)
        return alarm

    def seen(self, now: int, name: str, memory: Memory) -> bool:
        """A worker tells what it remembers."""
        return bool(self._driver.ask(now, "seen", name, *memory))

    def remember(self, now: int, name: str, index: int = 1) -> Memory:
        """What a worker that starts a call now sees."""
        state = self._driver.look(now)
        item = state["items"][index]
        return Memory(
            int(state.born), int(item.cum), int(item.used), math.floor(item.level), int(state.now), str(state.server)
        )

    def snapshot(self) -> object:
        """The state as a replica has it now."""
        return self._driver.copy()

    def move(self, server: str, state: object = None) -> None:
        """Another server from now on, with the state that it has."""
        self._driver.move(server, state)

    def level(self, now: int, index: int = 1) -> float:
        return float(self._driver.look(now)["items"][index].level)

    def used(self, now: int, index: int = 1) -> float:
        return float(self._driver.look(now)["items"][index].used)

    def window(self, now: int, index: int = 1) -> tuple[int, list[int]]:
        """What the window holds in all, and by slot."""
        item = self._driver.look(now)["items"][index]
        return int(item.used), [int(charge) for charge in item.charges.values()]

    def stored(self, name: str) -> str:
        """A field as it is kept, e.g. `at` or `tpm.cum`; empty where it isn't."""
        limit, _, field = name.rpartition(".")
        value = self._driver.stored(field, limit or None)
        return "" if value is None else str(int(value) if isinstance(value, float) and value.is_integer() else value)

    def _cost(self, cost: Cost) -> object:
        names = (("rpm", "rpd"), ("tpm", "tpd"), ("itpm",), ("otpm",))
        return self._lua.table_from([next((cost[name] for name in some if name in cost), 0) for some in names])


def warm(*limits: Limit, **settings: Any) -> tuple[Arithmetic, int]:
    """A budget that has been idle for an hour, and the time."""
    budget = Arithmetic(limits, **settings)
    budget.wait(START_US, {"rpm": 0})
    return budget, START_US + 3600 * 1_000_000


class Memory(NamedTuple):
    """What a worker remembers of one limit."""

    born: int
    cum: int
    used: int
    level: int
    at: int
    server: str


class Charge(NamedTuple):
    """What was taken when."""

    at: int
    amount: int


FLOORS = (Fraction(0), Fraction(1, 10), Fraction(3, 10))


class Model:
    """One limit, as a plain list of charges and an exact level: slow, and too simple to be wrong."""

    def __init__(self, limit: Limit, at: int) -> None:
        self.limit = limit
        self.capacity, self.rate = Fraction(limit.capacity), Fraction(limit.rate)
        self.charges: list[Charge] = []
        self.start_cold(at)

    def start_cold(self, at: int) -> None:
        """All is forgotten but what providers have counted: `charges` stay for `worst`, not for `used`."""
        self.born, self.at, self.level = at, at, Fraction(self.limit.cold)
        self.known_from = len(self.charges)

    def move(self, now: int) -> None:
        """Time passes; backwards it doesn't."""
        now = max(now, self.at)
        self.level = min(self.capacity, self.level + (now - self.at) * self.rate)
        self.at = now

    def used(self) -> int:
        """What some provider's window may still hold: a slot counts until its end is W + J ago."""
        limit = self.limit
        since = self.at - limit.window_us - limit.late_us
        return sum(
            charge.amount
            for charge in self.charges[self.known_from :]
            if (charge.at // limit.slot_us + 1) * limit.slot_us > since
        )

    def lack(self, amount: int, rank: int) -> Fraction:
        """By how much the level falls short (negative: it doesn't)."""
        kept = min(FLOORS[rank] * self.capacity, max(Fraction(0), self.capacity - amount))
        return min(self.capacity, amount + kept) - self.level

    def fits(self, amount: int, rank: int) -> bool:
        kept = min(FLOORS[rank] * self.capacity, max(Fraction(0), self.capacity - amount))
        opened = amount <= self.capacity or self.at >= self.born + self.limit.window_us + self.limit.late_us
        return opened and self.lack(amount, rank) <= 0 and self.used() + amount + kept <= self.limit.limit

    def take(self, amount: int) -> None:
        self.charges.append(Charge(self.at, amount))
        self.level -= amount

    def give_back(self, index: int, amount: int) -> None:
        """Undo part of a charge, where it was made."""
        charge = self.charges[index]
        self.charges[index] = Charge(charge.at, charge.amount - amount)
        self.level = min(self.capacity, self.level + amount)

    def alive(self, charge: Charge) -> bool:
        """Whether the charge's slot is still counted."""
        limit = self.limit
        return (charge.at // limit.slot_us + 1) * limit.slot_us > self.at - limit.window_us - limit.late_us


def worst(charges: Sequence[Charge], length_us: int) -> int:
    """The most that any window (t - length, t] holds."""
    ordered, first, inside, most = sorted(charges), 0, 0, 0
    for charge in ordered:
        inside += charge.amount
        while ordered[first].at <= charge.at - length_us:
            inside -= ordered[first].amount
            first += 1
        most = max(most, inside)
    return most


def near(limit: Limit, lack: Fraction) -> bool:
    """Whether a level is so near to what is needed that rounding decides."""
    return abs(lack) < max(1e-6, limit.limit * 1e-12)


def whole_wait(wait_us: float) -> int:
    """A wait as a timer takes it."""
    assert wait_us == math.floor(wait_us), "waits are whole microseconds"
    return int(wait_us)
