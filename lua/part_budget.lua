-- The arithmetic of one deployment's budget: token bucket and rolling window over several limits.
-- Pure: no redis.call. The caller passes what was saved, and `now`, and keeps what `budget.saved` returns.
--
-- term    {limits, settlement, max_in_flight, feedback}, see tokenweir/terms.py
-- limit   {name, limit, window_us, late_us, slot_us, capacity, rate (per us), cold, paced, resets_us}
-- saved   {at (us of the last refill), born (us of the cold start), granted (count), in_flight (grants not settled),
--          server (run id of the server that wrote it), limits = {<name> = {level, cum (all charges ever), used (in the
--          window), slot_us, first (number of the first slot), charges (by slot, up to the present one)}}};
--         and what is seldom needed: pause_until (us), paused_at, probe_at, why; factor (of a narrowed rate);
--         settle_until; refunds, heard_at, samples, hold_at (part_feedback.lua); of a limit told (what the provider
--         states), debt (taken over after a cold start), base, back (cum when the server changed, and how much that was
--         missing in it has come back), gross, net, spare, heard_at, left, foreign (part_feedback.lua)
-- cost    {requests, tokens, tokens of the prompt, of the output}: integers >= 0
local budget = {}
-- Locals, and loops without iterators: these lines run for every limit of every call, and a lookup of a global in them costs.
local min, max, floor, ceil, huge = math.min, math.max, math.floor, math.ceil, math.huge

-- Shares of the capacity that are left to others: by rank 0, 1, 2 to the classes above; by simple work, while
-- the edge can take it, to what only premium can do.
budget.floors = {[0] = 0, [1] = 0.1, [2] = 0.3, simple = 0.5}
-- A narrowed rate heals by this much a microsecond.
local HEALING = 0.005 / 1e6
-- For so long one probe alone is on its way after a pause; then another may try.
local PROBE_US = 10000000
-- After a change of server nobody is granted for so long: every worker tells meanwhile what it has seen.
local SETTLE_US = 1000000
local COUNTS, TIMES = {'granted', 'in_flight'}, {'heard_at', 'probe_at', 'paused_at', 'settle_until', 'pause_until', 'hold_at'}
-- When a slot in flight comes free nobody knows; look again after this.
local IN_FLIGHT_US = 1000000

-- Where in a cost a limit finds its own.
local PLACES = {rpm = 1, rpd = 1, tpm = 2, tpd = 2, itpm = 3, otpm = 4}

-- What a request costs: by place, since a table with names costs three times as much to make.
function budget.cost(prompt, output) return {1, prompt + output, prompt, output} end

local function slot_of(limit, at) return floor(at / limit.slot_us) end

-- The first slot that a provider's window may still hold.
function budget.oldest(limit, now)
  local since = now - limit.window_us
  if limit.resets_us >= 0 then
    since = floor((now - limit.resets_us) / limit.window_us) * limit.window_us + limit.resets_us
  end
  return slot_of(limit, since - limit.late_us)
end

-- Move on to the slot of `now`, and forget those that have gone.
local function roll(item, now)
  local charges, count = item.charges, #item.charges
  local gone = budget.oldest(item.limit, now) - item.first
  if gone >= count then
    item.first, item.charges, item.used = slot_of(item.limit, now), {0}, 0
    return
  end
  for i = count + 1, slot_of(item.limit, now) - item.first + 1 do charges[i] = 0 end
  if gone <= 0 then return end
  local kept = {}
  for i = 1, #charges do
    if i > gone then kept[i - gone] = charges[i] else item.used = item.used - charges[i] end
  end
  item.first, item.charges = item.first + gone, kept
end

-- Add `amount` (below 0: take it out) to the slot that holds `at`, which is one that a window may still hold.
function budget.put(item, amount, at)
  local place = slot_of(item.limit, at) - item.first + 1
  if place < 1 then
    local charges = {}
    for i = 1, 1 - place do charges[i] = 0 end
    for i, charge in ipairs(item.charges) do charges[i + 1 - place] = charge end
    item.first, item.charges, place = item.first + place - 1, charges, 1
  end
  place = min(place, #item.charges)
  item.charges[place] = item.charges[place] + amount
  item.used = item.used + amount
end

-- What others take of the key is missing in the refill, for as long as the provider tells of it.
local function less_foreign(item, was, state)
  item.heard_at, item.left, item.foreign = was.heard_at, was.left, was.foreign or 0
  if item.heard_at and state.now - item.heard_at > 10 * item.limit.window_us then item.heard_at, item.foreign = nil, 0 end
  item.rate = max(0.02 * item.rate, min(item.rate, item.allowed / item.limit.window_us - item.foreign))
end

local UNKNOWN = {}
local function opened(was, limit, state, passed, moved)
  local known = was or UNKNOWN
  local told = known.told or limit.limit
  local share = min(1, told / limit.limit)
  local allowed, first, charges, used, cum = limit.limit * share, known.first, known.charges, known.used or 0, known.cum or 0
  if known.slot_us ~= limit.slot_us then
    -- A window that was changed while running: all of it counts as charged just now, which is the safe side.
    first, charges = slot_of(limit, state.now), {used}
  end
  local gross, net, spare
  if limit.name == 'tpm' and state.term.settlement == 'auto' then
    -- What the provider's own bucket lacks, if it never refunds and if it always does.
    local refilled = passed * allowed / limit.window_us
    gross, net = max(0, (known.gross or 0) - refilled), max(0, (known.net or 0) - refilled)
    spare = known.spare or 0
  end
  -- In one piece: a table that grows field by field is made anew five times.
  local item = {
    limit = limit, name = limit.name, place = PLACES[limit.name], paced = limit.paced, told = told, allowed = allowed,
    capacity = limit.capacity * share, rate = limit.rate * share * state.factor, level = 0, first = first, charges = charges,
    used = used, cum = cum, debt = known.debt or 0, base = moved and cum or known.base or 0,
    back = not moved and known.back or 0, gross = gross, net = net, spare = spare,
  }
  if state.term.feedback and limit.paced then less_foreign(item, known, state) end
  if was then
    item.level = min(item.capacity, was.level + passed * item.rate)
  else
    item.level, state.born, state.changed = min(item.capacity, limit.cold), state.now, true
  end
  roll(item, state.now)
  return item
end

-- The budget as of `now`: refilled, old slots forgotten. Without what was saved (nil) it starts cold, and so does one
-- that a new limit is added to. `server` (may be nil) is the run id of the server that is asked.
function budget.open(was, term, now, server)
  was = was or {}
  local at, longest = was.at, 0
  for _, limit in ipairs(term.limits) do
    if limit.paced or longest == 0 then longest = max(longest, limit.window_us + limit.late_us) end
  end
  -- TIME can step back after a fail-over; a bucket must not shrink for it: until the clock is where it was, time
  -- stands still. By more than a window it was wrong before: start cold, or the budget would be closed as long.
  local restart = at ~= nil and at - now > longest
  local at_now = restart and now or max(now, at or now)
  local passed = restart and 0 or at_now - (at or now)
  local state = {
    now = at_now, term = term, items = {}, granted = was.granted or 0, in_flight = was.in_flight or 0,
    heard_at = 0, probe_at = 0, paused_at = 0, settle_until = 0, pause_until = 0, hold_at = 0,
    born = not restart and was.born or at_now, why = was.why or '', refunds = was.refunds or false, samples = was.samples,
    factor = min(1, (was.factor or 1) + passed * HEALING), server = server or was.server, changed = false,
  }
  for i = 1, #TIMES do state[TIMES[i]] = max(0, (was[TIMES[i]] or 0) - (restart and at - now or 0)) end
  state.settle_until = min(state.settle_until, at_now + SETTLE_US)
  local moved = was.server ~= nil and was.server ~= state.server
  if moved then state.settle_until = state.now + SETTLE_US end
  state.changed = not at or restart or was.server ~= state.server
  for _, limit in ipairs(term.limits) do
    local known, kept = PLACES[limit.name], was.limits and was.limits[limit.name]
    -- A day's count outlives a clock that was put right.
    if restart and limit.paced then kept = nil end
    if known then state.items[#state.items + 1] = opened(kept, limit, state, passed, moved) end
    if not known then state.unknown = was.limits or {} end
  end
  return state
end

-- Time until the window has room for `need`: the end of the slot whose going makes it.
local function window_wait(item, need, now)
  local limit, over = item.limit, item.used + need - item.allowed
  if over <= 0 then return 0 end
  if limit.resets_us >= 0 then
    return limit.window_us - (now - limit.resets_us) % limit.window_us + limit.late_us
  end
  for i, charge in ipairs(item.charges) do
    over = over - charge
    if over <= 0 then return (item.first + i) * limit.slot_us + limit.window_us + limit.late_us - now end
  end
  return limit.window_us + limit.late_us
end

-- Time until the deployment takes anything at all.
local function closed(state)
  local until_at, now = state.settle_until, state.now
  if state.pause_until > now then
    until_at = max(until_at, state.pause_until)
  elseif state.pause_until > 0 and state.probe_at > 0 then
    until_at = max(until_at, state.probe_at + PROBE_US)
  end
  local most = state.term.max_in_flight
  -- What a newer release limits only its workers can count, so only they may grant.
  if state.unknown or most > 0 and state.in_flight >= most then until_at = max(until_at, now + IN_FLIGHT_US) end
  return max(0, until_at - now)
end

-- What is held back for a while, to be let go at once: see `ask` in part_feedback.lua.
local HOLD_SHARE, HOLD_US = 0.09, 30000000
local function held(state, item)
  local since = state.now - state.hold_at
  if since >= HOLD_US then return 0 end
  return min(HOLD_SHARE * item.allowed, 0.9 * item.capacity) * since / HOLD_US
end

-- Microseconds until `cost` fits for who leaves that floor (of a rank, or `simple`); 0 = now. huge = never.
function budget.wait(state, cost, who)
  local longest, share, items = closed(state), budget.floors[who], state.items
  for i = 1, #items do
    local item = items[i]
    local price, capacity, kept = cost[item.place], item.capacity, 0
    if price > item.allowed then return huge end
    if item.paced then
      -- A floor never keeps out what could otherwise go: large requests of a low class must get through too.
      if share > 0 then kept = min(share * capacity, max(0, capacity - price)) end
      local need = price + kept + (item.gross and held(state, item) or 0)
      if need > capacity then need = capacity end
      if item.level < need then longest = max(longest, ceil((need - item.level) / item.rate)) end
    end
    if price + kept + item.used > item.allowed then
      longest = max(longest, window_wait(item, price + kept, state.now))
    end
    -- After lost state nobody knows the window: for its length only what the bucket paces may go.
    if price > capacity then
      longest = max(longest, state.born + item.limit.window_us + item.limit.late_us - state.now)
    end
  end
  return longest
end

-- Whether `cost` could ever be granted.
function budget.possible(state, cost)
  for i = 1, #state.items do
    local item = state.items[i]
    if cost[item.place] > item.allowed then return false end
  end
  return true
end

-- How full the emptiest limit is: the deployment with most room is taken.
function budget.room(state)
  local least = 1
  for i = 1, #state.items do
    local item = state.items[i]
    if item.limit.paced then least = min(least, item.level / item.capacity) end
    least = min(least, 1 - item.used / item.allowed)
  end
  return least
end

-- Charge `amount` of one limit now; the level may become a debt.
function budget.add(item, amount)
  local charges = item.charges
  local count = #charges
  charges[count] = charges[count] + amount
  item.used, item.level, item.cum = item.used + amount, item.level - amount, item.cum + amount
  if item.gross then
    -- More than all of it no bucket can lack.
    local gross, net, allowed = item.gross + amount, item.net + amount, item.allowed
    item.gross, item.net = gross < allowed and gross or allowed, net < allowed and net or allowed
  end
end

-- Take `cost` from every limit for a call: only after `budget.wait` said 0.
function budget.charge(state, cost)
  for i = 1, #state.items do
    local item = state.items[i]
    budget.add(item, cost[item.place])
  end
  state.granted, state.in_flight = state.granted + 1, state.in_flight + 1
  if state.pause_until > 0 then state.probe_at = state.now end
end

-- Undo up to `amount` of what was charged at `granted_at`: out of the very slot, never as fresh credit.
function budget.take_back(item, amount, granted_at)
  local place = min(slot_of(item.limit, granted_at) - item.first + 1, #item.charges)
  if place < 1 then return end
  amount = min(amount, item.charges[place])
  if amount > 0 then
    budget.put(item, -amount, granted_at)
    item.level = min(item.capacity, item.level + amount)
  end
end

-- Undo `cost` of a grant whose call was never made.
function budget.uncharge(state, cost, granted_at)
  for i = 1, #state.items do
    local item = state.items[i]
    local amount = cost[item.place]
    budget.take_back(item, amount, granted_at)
    if item.gross then item.gross, item.net = max(0, item.gross - amount), max(0, item.net - amount) end
  end
  if state.probe_at == granted_at then state.probe_at = 0 end
end

-- What is to be kept of the budget: plain tables, numbers and texts.
function budget.saved(state)
  local kept = {at = state.now, born = state.born, factor = state.factor < 1 and state.factor or nil, limits = {},
    server = state.server, why = state.why ~= '' and state.why or nil, refunds = state.refunds or nil, samples = state.samples}
  local function seldom(name) if state[name] ~= 0 then kept[name] = state[name] end end
  for i = 1, #COUNTS do seldom(COUNTS[i]) end
  for i = 1, #TIMES do seldom(TIMES[i]) end
  for i = 1, #state.items do
    local item = state.items[i]
    local limit = {level = item.level, cum = item.cum, used = item.used, slot_us = item.limit.slot_us, first = item.first,
      charges = item.charges, gross = item.gross, net = item.net, spare = item.spare, heard_at = item.heard_at,
      left = item.left, foreign = item.foreign}
    if item.told ~= item.limit.limit then limit.told = item.told end
    if item.debt ~= 0 then limit.debt = item.debt end
    if item.base ~= 0 then limit.base = item.base end
    if item.back ~= 0 then limit.back = item.back end
    kept.limits[item.name] = limit
  end
  for name, limit in pairs(state.unknown or {}) do kept.limits[name] = kept.limits[name] or limit end
  return kept
end
