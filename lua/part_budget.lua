-- The arithmetic of one deployment's budget: token bucket and rolling window over several limits.
-- Pure: no redis.call. The caller reads the hash, passes `now` and writes what `budget.fields` returns.
--
-- term    {limits, settlement, max_in_flight, feedback}, see tokenweir/terms.py
-- limit   {name, limit, window_us, late_us, slot_us, capacity, rate (per us), cold, paced, resets_us}
-- hash    at (us of the last refill), born (us of the cold start), granted (count), in_flight (grants not settled);
--         pause_until (us; 0 = none), paused_at, probe_at, why; factor (narrowed rate); server (its run id), settle_until;
--         refunds (0|1), heard_at and samples (part_feedback.lua);
--         per limit: <name>.level, <name>.cum (all charges ever), <name>.told (limit that the provider states),
--         <name>.debt (taken over after a cold start), <name>.base, <name>.back (cum when the server changed, and how much
--         that was missing in it has come back), <name>.gross, <name>.net (part_feedback.lua),
--         <name>.slots = "slot_us:first:last:charge:used:past": `charge` stands in slot `last`, and `past` lists
--         the charges of the slots from `first` up to it; most calls need to read none of them
-- cost    {rpm = 1, tpm = 570, ...}: integers >= 0
local budget = {}

-- Shares of the capacity that are left to others: by rank 0, 1, 2 to the classes above; by simple work, while
-- the edge can take it, to what only premium can do.
budget.floors = {[0] = 0, [1] = 0.1, [2] = 0.3, simple = 0.5}
-- A narrowed rate heals by this much a microsecond.
local HEALING = 0.005 / 1e6
-- For so long one probe alone is on its way after a pause; then another may try.
local PROBE_US = 10000000
-- After a change of server nobody is granted for so long: every worker tells meanwhile what it has seen.
local SETTLE_US = 1000000
local COUNTS = {'granted', 'in_flight', 'heard_at', 'probe_at', 'paused_at', 'settle_until', 'pause_until'}
-- When a slot in flight comes free nobody knows; look again after this.
local IN_FLIGHT_US = 1000000

-- What a request costs of each limit there is.
function budget.cost(prompt, output)
  return {rpm = 1, rpd = 1, tpm = prompt + output, tpd = prompt + output, itpm = prompt, otpm = output}
end

local function slot_of(limit, at) return math.floor(at / limit.slot_us) end

-- The first slot that a provider's window may still hold.
function budget.oldest(limit, now)
  local since = now - limit.window_us
  if limit.resets_us >= 0 then
    since = math.floor((now - limit.resets_us) / limit.window_us) * limit.window_us + limit.resets_us
  end
  return slot_of(limit, since - limit.late_us)
end

-- Move on to the slot of `now`, and forget those that have gone.
local function roll(item, now)
  local limit, current = item.limit, slot_of(item.limit, now)
  local first = budget.oldest(limit, now)
  if item.last < first then
    item.first, item.last, item.charge, item.used, item.past = current, current, 0, 0, ''
    return
  end
  if item.last < current then
    item.past = item.past .. string.format('%.0f ', item.charge) .. string.rep('0 ', current - item.last - 1)
    item.last, item.charge = current, 0
  end
  local at = 1
  while item.first < first do
    local space = string.find(item.past, ' ', at, true)
    item.used = item.used - tonumber(string.sub(item.past, at, space - 1))
    item.first, at = item.first + 1, space + 1
  end
  if at > 1 then item.past = string.sub(item.past, at) end
end

local function read_slots(text, limit, now)
  local current = slot_of(limit, now)
  local fresh = {first = current, last = current, charge = 0, used = 0, past = ''}
  local slot_us, first, last, charge, used, past = string.match(text or '', '^(%d+):(%d+):(%d+):(%d+):(%d+):(.*)$')
  if not slot_us then return fresh, text == nil end
  if tonumber(slot_us) ~= limit.slot_us then
    -- The window was changed while running: count all of it as charged just now, which is the safe side.
    fresh.charge, fresh.used = tonumber(used), tonumber(used)
    return fresh, true
  end
  return {first = tonumber(first), last = tonumber(last), charge = tonumber(charge), used = tonumber(used), past = past}, true
end

-- The charges of all slots from `item.first` on, as a table.
function budget.slots(item)
  local charges = {}
  for charge in string.gmatch(item.past, '%d+') do charges[#charges + 1] = tonumber(charge) end
  charges[#charges + 1] = item.charge
  return charges
end

-- Add `amount` (below 0: take it out) to the slot that holds `at`, which is one that a window may still hold.
function budget.put(item, amount, at)
  local index = slot_of(item.limit, at)
  if index >= item.last then
    item.charge = item.charge + amount
  else
    if index < item.first then
      item.past = string.rep('0 ', item.first - index) .. item.past
      item.first = index
    end
    local charges = budget.slots(item)
    local place = index - item.first + 1
    charges[place] = charges[place] + amount
    for i = 1, #charges do charges[i] = string.format('%.0f', charges[i]) end
    charges[#charges] = ''
    item.past = table.concat(charges, ' ')
  end
  item.used = item.used + amount
end

local function opened(flat, limit, state, restart, passed, moved)
  local name = limit.name
  restart = restart and limit.paced
  local told = tonumber(flat[name .. '.told']) or limit.limit
  local share = math.min(1, told / limit.limit)
  local level = not restart and tonumber(flat[name .. '.level'])
  local item, readable = read_slots(not restart and flat[name .. '.slots'] or nil, limit, state.now)
  if not level or not readable then level, state.born, state.changed = nil, state.now, true end
  item.limit, item.name, item.paced, item.told = limit, name, limit.paced, told
  item.allowed, item.capacity = limit.limit * share, limit.capacity * share
  item.rate = limit.rate * share * state.factor
  item.level = level and math.min(item.capacity, level + passed * item.rate) or math.min(item.capacity, limit.cold)
  item.cum = tonumber(flat[name .. '.cum']) or 0
  item.debt = level and tonumber(flat[name .. '.debt']) or 0
  item.base = moved and item.cum or tonumber(flat[name .. '.base']) or 0
  item.back = not moved and tonumber(flat[name .. '.back']) or 0
  if name == 'tpm' and state.term.settlement == 'auto' then
    -- What the provider's own bucket lacks, if it never refunds and if it always does.
    local refilled = passed * item.allowed / limit.window_us
    item.gross = math.max(0, (tonumber(flat[name .. '.gross']) or 0) - refilled)
    item.net = math.max(0, (tonumber(flat[name .. '.net']) or 0) - refilled)
  end
  roll(item, state.now)
  return item
end

-- The budget as of `now`: refilled, old slots forgotten. A budget without state starts cold, and so does one that a
-- new limit is added to. `server` (may be nil) is the run id of the server that is asked.
function budget.open(flat, term, now, server)
  local at, longest = tonumber(flat.at), 0
  for _, limit in ipairs(term.limits) do
    if limit.paced or longest == 0 then longest = math.max(longest, limit.window_us + limit.late_us) end
  end
  -- TIME can step back after a fail-over; a bucket must not shrink for it: until the clock is where it was, time
  -- stands still. By more than a window it was wrong before: start cold, or the budget would be closed as long.
  local restart = at ~= nil and at - now > longest
  local back = restart and at - now or 0
  local state = {now = restart and now or math.max(now, at or now), term = term, flat = flat, items = {}}
  local passed = restart and 0 or state.now - (at or now)
  for _, name in ipairs(COUNTS) do
    state[name] = tonumber(flat[name]) or 0
  end
  state.probe_at, state.paused_at = math.max(0, state.probe_at - back), math.max(0, state.paused_at - back)
  state.pause_until = math.max(0, state.pause_until - back)
  state.settle_until = math.min(state.settle_until, state.now + SETTLE_US)
  state.born = not restart and tonumber(flat.born) or state.now
  state.why, state.refunds, state.samples = flat.why or '', flat.refunds == '1', flat.samples or ''
  state.factor = math.min(1, (tonumber(flat.factor) or 1) + passed * HEALING)
  state.server = server or flat.server or ''
  local moved = at ~= nil and (flat.server or '') ~= '' and flat.server ~= state.server
  if moved then state.settle_until = state.now + SETTLE_US end
  state.changed = not at or restart or (flat.server or '') ~= state.server
  for i, limit in ipairs(term.limits) do state.items[i] = opened(flat, limit, state, restart, passed, moved) end
  return state
end

-- Time until the window has room for `need`: the end of the slot whose going makes it.
local function window_wait(item, need, now)
  local limit, over = item.limit, item.used + need - item.allowed
  if over <= 0 then return 0 end
  if limit.resets_us >= 0 then
    return limit.window_us - (now - limit.resets_us) % limit.window_us + limit.late_us
  end
  for i, charge in ipairs(budget.slots(item)) do
    over = over - charge
    if over <= 0 then return (item.first + i) * limit.slot_us + limit.window_us + limit.late_us - now end
  end
  return limit.window_us + limit.late_us
end

-- Time until the deployment takes anything at all.
local function closed(state)
  local until_at = state.settle_until
  if state.pause_until > state.now then
    until_at = math.max(until_at, state.pause_until)
  elseif state.pause_until > 0 and state.probe_at > 0 then
    until_at = math.max(until_at, state.probe_at + PROBE_US)
  end
  local most = state.term.max_in_flight
  if most > 0 and state.in_flight >= most then until_at = math.max(until_at, state.now + IN_FLIGHT_US) end
  return math.max(0, until_at - state.now)
end

-- Microseconds until `cost` fits for who has that floor (a rank, or `simple`); 0 = now. math.huge = never.
function budget.wait(state, cost, floor)
  local longest, share = closed(state), budget.floors[floor]
  for _, item in ipairs(state.items) do
    local price, capacity, kept = cost[item.name] or 0, item.capacity, 0
    if price > item.allowed then return math.huge end
    if item.paced then
      -- A floor never keeps out what could otherwise go: large requests of a low class must get through too.
      if share > 0 then kept = math.min(share * capacity, math.max(0, capacity - price)) end
      local need = math.min(capacity, price + kept)
      if item.level < need then longest = math.max(longest, math.ceil((need - item.level) / item.rate)) end
    end
    if price + kept + item.used > item.allowed then
      longest = math.max(longest, window_wait(item, price + kept, state.now))
    end
    -- After lost state nobody knows the window: for its length only what the bucket paces may go.
    if price > capacity then
      longest = math.max(longest, state.born + item.limit.window_us + item.limit.late_us - state.now)
    end
  end
  return longest
end

-- Whether `cost` could ever be granted.
function budget.possible(state, cost)
  for _, item in ipairs(state.items) do
    if (cost[item.limit.name] or 0) > item.allowed then return false end
  end
  return true
end

-- How full the emptiest limit is: the deployment with most room is taken.
function budget.room(state)
  local least = 1
  for _, item in ipairs(state.items) do
    if item.limit.paced then least = math.min(least, item.level / item.capacity) end
    least = math.min(least, 1 - item.used / item.allowed)
  end
  return least
end

-- Charge `amount` of one limit now; the level may become a debt.
function budget.add(item, amount)
  item.charge, item.used = item.charge + amount, item.used + amount
  item.level, item.cum = item.level - amount, item.cum + amount
  if item.gross then item.gross, item.net = item.gross + amount, item.net + amount end
end

-- Take `cost` from every limit for a call: only after `budget.wait` said 0.
function budget.charge(state, cost)
  for _, item in ipairs(state.items) do budget.add(item, cost[item.name] or 0) end
  state.granted, state.in_flight = state.granted + 1, state.in_flight + 1
  if state.pause_until > 0 then state.probe_at = state.now end
end

-- Undo up to `amount` of what was charged at `granted_at`: out of the very slot, never as fresh credit.
function budget.take_back(item, amount, granted_at)
  local index = slot_of(item.limit, granted_at)
  if index < item.first then return end
  local held = index >= item.last and item.charge or budget.slots(item)[index - item.first + 1]
  amount = math.min(amount, held)
  if amount > 0 then
    budget.put(item, -amount, granted_at)
    item.level = math.min(item.capacity, item.level + amount)
  end
end

-- Undo `cost` of a grant whose call was never made.
function budget.uncharge(state, cost, granted_at)
  for _, item in ipairs(state.items) do
    local amount = cost[item.limit.name] or 0
    budget.take_back(item, amount, granted_at)
    if item.gross then item.gross, item.net = math.max(0, item.gross - amount), math.max(0, item.net - amount) end
  end
  if state.probe_at == granted_at then state.probe_at = 0 end
end

-- The hash's new fields, flat; those that are seldom needed only once they were. string.format, since tostring keeps
-- 14 digits.
function budget.fields(state)
  local flat = {'at', string.format('%.0f', state.now), 'born', string.format('%.0f', state.born)}
  local function put(name, value, usual)
    if value == usual and state.flat[name] == nil then return end
    flat[#flat + 1] = name
    flat[#flat + 1] = type(value) == 'number' and string.format('%.17g', value) or value
  end
  put('server', state.server, '')
  put('factor', state.factor, 1)
  put('why', state.why, '')
  put('samples', state.samples, '')
  put('refunds', state.refunds and 1 or 0, 0)
  for _, name in ipairs(COUNTS) do put(name, state[name], 0) end
  for _, item in ipairs(state.items) do
    local name, limit = item.limit.name, item.limit
    put(name .. '.level', item.level)
    put(name .. '.cum', item.cum)
    put(name .. '.told', item.told, limit.limit)
    put(name .. '.debt', item.debt, 0)
    put(name .. '.base', item.base, 0)
    put(name .. '.back', item.back, 0)
    if item.gross then
      put(name .. '.gross', item.gross)
      put(name .. '.net', item.net)
    end
    flat[#flat + 1] = name .. '.slots'
    flat[#flat + 1] = string.format('%.0f:%.0f:%.0f:%.0f:%.0f:', limit.slot_us, item.first, item.last, item.charge, item.used)
      .. item.past
  end
  return flat
end
