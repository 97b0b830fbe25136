"""The gate's own arithmetic, run in this process on a clock that the simulation sets.

Nothing is modelled here: these are the texts that run inside Redis, under the same Lua 5.1, and between two moments
every budget goes through the fields that would stand in Redis. What is proved is therefore what is shipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from lupa import lua51

from lua import part
from pipeline.sandbox.limits import Dimension
from tokenweir.terms import Terms

# Whole decisions a call, so that few values cross between the languages. `choose` is the pool's own
# (lua/part_pool.lua): of the deployments that can take the cost, the one with most room.
_DRIVER: Final = """
local pool = {}

-- The budget as of `now`. As in the scripts, only one that was changed is written: a refill can be worked out again.
local function at(deployment, now, changes)
  if deployment.opened ~= now then
    if deployment.changed or not deployment.opened then
      deployment.kept = deployment.state and budget.saved(deployment.state)
    end
    deployment.state, deployment.opened = budget.open(deployment.kept, deployment.term, now), now
    deployment.changed = deployment.kept == nil
  end
  deployment.changed = deployment.changed or changes
  return deployment.state
end

local function returned(state) state.in_flight = math.max(0, state.in_flight - 1) end

-- Grows when a bucket or a window gets room.
local function room(state)
  local sum = 0
  for _, item in ipairs(state.items) do sum = sum + item.level - item.used end
  return sum
end

return {
  add = function(term) pool[#pool + 1] = {term = term} end,

  take = function(now, prompt, output, floor, kept)
    local cost, best, shortest, nearest, open = budget.cost(prompt, output), 0, math.huge, 0, math.huge
    for i, deployment in ipairs(pool) do
      local wait = budget.wait(at(deployment, now), cost, floor)
      if wait < shortest then shortest, nearest = wait, i end
      if i ~= kept then
        open = math.min(open, wait)
        if wait <= 0 and (best == 0 or budget.room(deployment.state) > budget.room(pool[best].state)) then best = i end
      end
    end
    if best > 0 then budget.charge(at(pool[best], now, true), cost) end
    return best, shortest, nearest, open
  end,

  possible = function(now, prompt, output)
    local cost = budget.cost(prompt, output)
    for _, deployment in ipairs(pool) do
      if budget.possible(at(deployment, now), cost) then return true end
    end
    return false
  end,

  settle = function(i, now, prompt, output, used, granted_at)
    local state = at(pool[i], now, true)
    local paused, before = state.pause_until, room(state)
    budget.passed(state, granted_at)
    budget.settle(state, budget.cost(prompt, output), budget.cost(prompt, used), granted_at)
    returned(state)
    return room(state) > before or state.pause_until ~= paused or state.term.max_in_flight > 0
  end,

  refused = function(i, now, till, granted_at)
    local state = at(pool[i], now, true)
    budget.pause(state, till, granted_at, '429', true)
    returned(state)
  end,

  heard = function(i, now, name, left, limit, reset_us, sent_at, own)
    return budget.heard(at(pool[i], now, true), name, left, limit, reset_us, sent_at, own)
  end,

  look = function(i, now)
    local state, fullest = at(pool[i], now), 1
    for _, item in ipairs(state.items) do
      if item.limit.paced then fullest = math.min(fullest, item.level / item.capacity) end
    end
    return fullest, state.factor, state.refunds and 1 or 0
  end,
}
"""


class Heard(msgspec.Struct, frozen=True):
    """One limit in a provider's headers: `left` of `limit`, full again in `reset_us`."""

    name: Dimension
    left: int
    limit: int
    reset_us: int


class Look(msgspec.Struct, frozen=True):
    """How a deployment stands.

    Attributes:
        level: of the emptiest bucket, as a share of its capacity. factor: of the rate, narrowed by refusals.
        refunds: whether unused tokens are given back.
    """

    level: float
    factor: float
    refunds: bool


class Taken(NamedTuple):
    """The deployment that was charged, or None, and how many microseconds it is to be waited for.

    Attributes:
        wait_us: until any may take it, and `nearest` which that is. open_us: until one that isn't kept for another may.
    """

    deployment: int | None
    wait_us: float
    nearest: int | None
    open_us: float


class Budgets:
    """The budgets of a pool's deployments, by index from 0; times in whole microseconds that never step back.

    Args:
        parts: other texts of `budget` and `feedback`, to try a change before it is made.
    """

    def __init__(self, terms: Sequence[Terms], parts: Mapping[str, str] | None = None) -> None:
        given = parts or {}
        texts = [given.get(name) or part(name) for name in ("budget", "feedback")]
        self._lua = lua51.LuaRuntime()
        driver = self._lua.execute("\n".join([*texts, _DRIVER]))
        for term in terms:
            driver.add(self._table(msgspec.to_builtins(term)))
        self._take, self._possible, self._settle = driver.take, driver.possible, driver.settle
        self._refused, self._heard, self._look = driver.refused, driver.heard, driver.look

    def take(self, now: int, prompt: int, output: int, floor: int | str, kept: int | None) -> Taken:
        """Charge the cost where it fits, but not at `kept`, which is kept for another."""
        chosen, wait_us, nearest, open_us = self._take(now, prompt, output, floor, -1 if kept is None else kept + 1)
        return Taken(chosen - 1 if chosen else None, float(wait_us), nearest - 1 if nearest else None, float(open_us))

    def possible(self, now: int, prompt: int, output: int) -> bool:
        """Whether any deployment could ever take it."""
        return bool(self._possible(now, prompt, output))

    def settle(self, deployment: int, now: int, *, prompt: int, output: int, used: int, granted_at: int) -> bool:
        """A call ended and used `used` of `output` tokens reserved; returns whether there is more room now."""
        return bool(self._settle(deployment + 1, now, prompt, output, used, granted_at))

    def refused(self, deployment: int, now: int, *, till: int, granted_at: int) -> None:
        """The provider answered 429: nothing goes until `till`."""
        self._refused(deployment + 1, now, till, granted_at)

    def heard(self, deployment: int, now: int, header: Heard, *, sent_at: int, own: int) -> str:
        """The provider's word on a limit to a call that cost `own`; returns what is worth an alarm, or nothing."""
        alarm = self._heard(deployment + 1, now, header.name, header.left, header.limit, header.reset_us, sent_at, own)
        return str(alarm or "")

    def look(self, deployment: int, now: int) -> Look:
        """How a deployment stands now."""
        level, factor, refunds = self._look(deployment + 1, now)
        return Look(level=level, factor=factor, refunds=refunds == 1)

    def _table(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self._lua.table_from({key: self._table(item) for key, item in value.items()})
        if isinstance(value, list | tuple):
            return self._lua.table_from([self._table(item) for item in value])
        return value
