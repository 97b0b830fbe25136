-- The arithmetic of one deployment's budget: token bucket and rolling window over several limits.
-- Pure: no redis.call. The caller reads the hash, passes `now` and writes what `budget.fields` returns.
--
-- limit   {name, limit, window_us, late_us, slot_us, slots, capacity, rate (per us), cold}, see pipeline/limits.py
-- hash    at (us of the last refill), born (us of the cold start), granted (count), pause_until (us);
--         per limit: <name>.level, <name>.cum (all charges ever), <name>.slots = "slot_us:first:charges by slot"
-- cost    {rpm = 1, tpm = 570, ...}: integers >= 0
local budget = {}

-- Shares of the capacity that are left to others: by rank 0, 1, 2 to the classes above; by simple work, while
-- the edge can take it, to what only premium can do.
budget.floors = {[0] = 0, [1] = 0.1, [2] = 0.3, simple = 0.5}

-- What a request costs of each limit there is.
function budget.cost(prompt, output)
  return {rpm = 1, rpd = 1, tpm = prompt + output, tpd = prompt + output, itpm = prompt, otpm = output}
end

local function read_slots(text, limit, now)
  local item = {first = math.floor(now / limit.slot_us), charges = {}, used = 0}
  if not text then return item end
  local slot_us, first, list = string.match(text, '^(%d+):(%d+):(.*)$')
  local charges, used = {}, 0
  for charge in string.gmatch(list, '%d+') do
    charges[#charges + 1] = tonumber(charge)
    used = used + charges[#charges]
  end
  if tonumber(slot_us) == limit.slot_us then
    return {first = tonumber(first), charges = charges, used = used}
  end
  -- The window was changed while running: count all of it as charged just now, which is the safe side.
  return {first = item.first, charges = {used}, used = used}
end

-- Forget the slots that no provider window can hold any more.
local function expire(item, limit, now)
  local oldest = math.floor((now - limit.window_us - limit.late_us) / limit.slot_us)
  local gone = math.min(#item.charges, oldest - item.first)
  local kept = {}
  if gone <= 0 and #item.charges > 0 then return end
  for i = 1, #item.charges do
    if i <= gone then item.used = item.used - item.charges[i] else kept[#kept + 1] = item.charges[i] end
  end
  item.first = #kept > 0 and item.first + gone or math.floor(now / limit.slot_us)
  item.charges = kept
end

-- The budget as of `now`: refilled, old slots expired. A budget without state starts cold, and so does one
-- that a new limit is added to.
function budget.open(flat, limits, now)
  local at, longest = tonumber(flat.at), 0
  for _, limit in ipairs(limits) do longest = math.max(longest, limit.window_us + limit.late_us) end
  -- TIME can step back after a fail-over; a bucket must not shrink for it: until the clock is where it was, time
  -- stands still. By more than a window it was wrong before: start cold, or the budget would be closed as long.
  local restart = at ~= nil and at - now > longest
  local state = {
    now = restart and now or math.max(now, at or now),
    born = not restart and tonumber(flat.born) or now,
    granted = tonumber(flat.granted) or 0,
    pause_until = (tonumber(flat.pause_until) or 0) - (restart and at - now or 0),
    items = {},
  }
  for i, limit in ipairs(limits) do
    local item = read_slots(not restart and flat[limit.name .. '.slots'], limit, state.now)
    local level = not restart and tonumber(flat[limit.name .. '.level'])
    if not level then state.born = state.now end
    item.limit = limit
    item.level = level and math.min(limit.capacity, level + (state.now - (at or now)) * limit.rate) or limit.cold
    item.cum = tonumber(flat[limit.name .. '.cum']) or 0
    expire(item, limit, state.now)
    state.items[i] = item
  end
  return state
end

-- Time until the window has room for `need`: the end of the slot whose going makes it.
local function window_wait(item, need, now)
  local limit, over = item.limit, item.used + need - item.limit.limit
  for i, charge in ipairs(item.charges) do
    if over <= 0 then break end
    over = over - charge
    if over <= 0 then
      return (item.first + i) * limit.slot_us + limit.window_us + limit.late_us - now
    end
  end
  return 0
end

-- Microseconds until `cost` fits for who has that floor (a rank, or `simple`); 0 = now. math.huge = never.
function budget.wait(state, cost, floor)
  local longest = math.max(0, state.pause_until - state.now)
  for _, item in ipairs(state.items) do
    local limit, price = item.limit, cost[item.limit.name] or 0
    if price > limit.limit then return math.huge end
    -- A floor never keeps out what could otherwise go: large requests of a low class must get through too.
    local kept = math.min(budget.floors[floor] * limit.capacity, math.max(0, limit.capacity - price))
    local need = math.min(limit.capacity, price + kept)
    if item.level < need then longest = math.max(longest, math.ceil((need - item.level) / limit.rate)) end
    if price + kept + item.used > limit.limit then
      longest = math.max(longest, window_wait(item, price + kept, state.now))
    end
    -- After lost state nobody knows the window: for its length only what the bucket paces may go.
    if price > limit.capacity then
      longest = math.max(longest, state.born + limit.window_us + limit.late_us - state.now)
    end
  end
  return longest
end

-- How full the emptiest limit is: the deployment with most room is taken.
function budget.room(state)
  local least = 1
  for _, item in ipairs(state.items) do
    least = math.min(least, item.level / item.limit.capacity, 1 - item.used / item.limit.limit)
  end
  return least
end

-- Add `amount` to the slot of `now` of one limit.
local function add(item, amount, now)
  local index = math.floor(now / item.limit.slot_us) - item.first + 1
  for i = #item.charges + 1, index do item.charges[i] = 0 end
  item.charges[index] = item.charges[index] + amount
  item.used, item.level, item.cum = item.used + amount, item.level - amount, item.cum + amount
end

-- Take `cost` from every limit: only after `budget.wait` said 0, or for what a call used beyond its
-- reservation, when the level may become a debt.
function budget.charge(state, cost)
  for _, item in ipairs(state.items) do add(item, cost[item.limit.name] or 0, state.now) end
end

-- Undo `cost` of a grant given at `granted_at`: out of the very slot that holds it, never as fresh credit.
function budget.uncharge(state, cost, granted_at)
  for _, item in ipairs(state.items) do
    local index = math.floor(granted_at / item.limit.slot_us) - item.first + 1
    local amount = math.min(cost[item.limit.name] or 0, item.charges[index] or 0)
    if amount > 0 then
      item.charges[index] = item.charges[index] - amount
      item.used = item.used - amount
      item.level = math.min(item.limit.capacity, item.level + amount)
    end
  end
end

-- The hash's new fields, flat. string.format, since tostring keeps 14 digits only.
function budget.fields(state)
  local flat = {
    'at', string.format('%.0f', state.now), 'born', string.format('%.0f', state.born),
    'granted', string.format('%.0f', state.granted), 'pause_until', string.format('%.0f', math.max(0, state.pause_until)),
  }
  for _, item in ipairs(state.items) do
    local name = item.limit.name
    flat[#flat + 1] = name .. '.level'
    flat[#flat + 1] = string.format('%.17g', item.level)
    flat[#flat + 1] = name .. '.cum'
    flat[#flat + 1] = string.format('%.0f', item.cum)
    flat[#flat + 1] = name .. '.slots'
    flat[#flat + 1] = string.format('%.0f:%.0f:%s', item.limit.slot_us, item.first, table.concat(item.charges, ' '))
  end
  return flat
end
