-- Budgets, grants and slots of a pool: reading them once, deciding on tables, writing them once.
-- Needs clock, budget; declares limits, slots, reservations, grants, premium, edge and the budgets (REST).

-- A grant that nobody settles is forgotten after this; its charge stands all the same.
local RESERVATION_US = 900 * 1000000
local KEPT_S = 3600
-- After a quarter of a window (in us per second of it) the first that waits has the bucket kept for it.
local PATIENCE = 250000

local deployments, reserved = {}, nil
do
  local server = redis.call('INFO', 'server')
  local _, at = string.find(server, 'run_id:', 1, true) -- plainly: a pattern costs 4 us more
  server = string.sub(server, at + 1, at + 40)
  local known = redis.call('HGETALL', K.limits)
  local terms = {}
  for i = 1, #known, 2 do terms[known[i]] = known[i + 1] end
  for _, entry in ipairs(REST) do
    local name = string.match(entry.name, '^budget:(.*)$')
    if name and terms[name] then
      local raw = redis.call('GET', entry.key)
      local state = budget.open(raw and cmsgpack.unpack(raw), cjson.decode(terms[name]), now, server)
      deployments[#deployments + 1] = {name = name, key = entry.key, term = state.term, state = state}
      deployments[name] = deployments[#deployments]
    end
  end
  -- For whom a deployment is kept: see `reserve`.
  if terms['@head'] then
    local since, till, score, name, id = string.match(terms['@head'], '^(%d+) (%d+) (%S+) (%S+) (.*)$')
    reserved = {since = tonumber(since), till = tonumber(till), score = tonumber(score), deployment = name, id = id}
  end
end

-- Write the budgets that have changed; a refill is no change, it can be worked out again. Before the first XADD: a
-- charge without its call is safe, a call without its charge isn't.
local function save_budgets()
  for _, deployment in ipairs(deployments) do
    local state = deployment.state
    if state.changed then redis.call('SET', deployment.key, cmsgpack.pack(budget.saved(state))) end
  end
end

-- Whether a head of the backlog that stands before `score` has waited for this deployment so long that it is kept for it.
local function kept(deployment, score)
  return reserved and reserved.deployment == deployment.name and now < reserved.till and score > reserved.score
    and now - reserved.since >= deployment.term.allowed.window_s * PATIENCE
end

-- The deployment that can take `cost` now, the one with most room; else nil, the shortest wait in us, whose it is, and
-- the shortest wait for one that isn't kept for another. `score` is the request's place in the order of waiting ones.
local function choose(cost, floor, score)
  local best, shortest, nearest, open = nil, huge, nil, huge
  for i = 1, #deployments do
    local deployment = deployments[i]
    local wait = budget.wait(deployment.state, cost, floor)
    if wait < shortest then shortest, nearest = wait, deployment end
    if not kept(deployment, score) then
      if wait < open then open = wait end
      if wait <= 0 and (not best or budget.room(deployment.state) > budget.room(best.state)) then best = deployment end
    end
  end
  return best, shortest, nearest, open
end

-- Whether some deployment could ever take `cost`.
local function possible(cost)
  for i = 1, #deployments do
    if budget.possible(deployments[i].state, cost) then return true end
  end
  return false
end

-- Free slots by kind: what live workers offer, less what is on its way (streams hold unfinished entries only).
local function free_slots(edge_queue)
  local premium, edge, offers = 0, 0, redis.call('HGETALL', K.slots)
  for i = 1, #offers, 2 do
    local a, b, expires = string.match(offers[i + 1], '^(%d+) (%d+) (%d+)$')
    if tonumber(expires) > now then
      premium, edge = premium + tonumber(a), edge + tonumber(b)
    else
      redis.call('HDEL', K.slots, offers[i])
    end
  end
  local alive = redis.call('EXISTS', K['edge:alive']) == 1 and edge > 0
  local busy = redis.call('XLEN', K.edge)
  return {
    premium = premium - redis.call('XLEN', K.premium),
    edge = alive and edge + edge_queue - busy or 0,
    edge_idle = alive and edge - busy or 0,
  }
end

-- A grant as it is recorded. Noughts before its tokens make it longer than 64 bytes: then Redis keeps `grants` as a table
-- from the first one on, where it would search a list of up to 512 from end to end at every look.
local NOUGHTS = ' 000000000000'
local function grant_text(number, at, prompt, output, started)
  return number .. ' ' .. at .. NOUGHTS .. prompt .. NOUGHTS .. output .. ' ' .. started
end

-- Charge a grant and record it under (id, attempt); returns its own number. `cost` is what budget.cost says.
local granted_now = {}
local function grant(deployment, id, attempt, prompt, output, cost)
  local state = deployment.state
  budget.charge(state, cost)
  state.changed = true
  -- The budget's time, which is ahead of `now` when the clock stepped back: the slot that holds the charge. The other
  -- numbers are short enough for `..`, which keeps 14 digits.
  local at = deployment.at or string.format('%.0f', state.now)
  deployment.at = at
  local number = deployment.name .. ':' .. state.granted .. ':' .. at
  granted_now[#granted_now + 1] = id .. '#' .. attempt
  granted_now[#granted_now + 1] = grant_text(number, at, prompt, output, 0)
  return number
end

-- Record the grants of this call; with `save_budgets`, before the first XADD.
local function save_grants()
  if #granted_now == 0 then return end
  local times, expiry = {}, string.format('%.0f', now + RESERVATION_US)
  for i = 1, #granted_now, 2 do times[i], times[i + 1] = expiry, granted_now[i] end
  redis.call('ZADD', K.reservations, unpack(times))
  redis.call('HSET', K.grants, unpack(granted_now))
  -- What a killed worker leaves is forgotten by later calls; where none come, by these.
  redis.call('EXPIRE', K.grants, KEPT_S)
  redis.call('EXPIRE', K.reservations, KEPT_S)
end

local function read_grant(member, text)
  if not text then return nil end
  local number, name, at, prompt, output, started = string.match(text, '^((%S+):%d+:%d+) (%d+) (%d+) (%d+) (%d)$')
  return {
    member = member, number = number, at = tonumber(at), prompt = tonumber(prompt), output = tonumber(output),
    started = started == '1', deployment = deployments[name],
  }
end

-- The live grants of `members`, each <id>#<attempt>; nil where there is none.
local function granted_to(members)
  local found = {}
  if #members == 0 then return found end
  for i, text in ipairs(redis.call('HMGET', K.grants, unpack(members))) do found[i] = read_grant(members[i], text) end
  return found
end

local function granted(id, attempt) return granted_to({id .. '#' .. attempt})[1] end

-- Forget grants: their calls are over. The charges stand.
local function forget_all(grants)
  local members = {}
  for _, held in ipairs(grants) do
    members[#members + 1] = held.member
    if held.deployment then
      local state = held.deployment.state
      state.in_flight, state.changed = max(0, state.in_flight - 1), true
    end
  end
  if #members == 0 then return end
  redis.call('HDEL', K.grants, unpack(members))
  redis.call('ZREM', K.reservations, unpack(members))
end

local function forget(held) forget_all({held}) end

-- Forget a grant and undo its charge: no call was made for it, and none will be.
local function undo(held)
  if held.deployment then
    budget.uncharge(held.deployment.state, budget.cost(held.prompt, held.output), held.at)
  end
  forget(held)
end

-- The same where it isn't known: undo the charge of a grant that was never started; one that was may have been called for.
local function give_back(held)
  if held and held.started then forget(held) elseif held then undo(held) end
end

-- Forget a few grants that nobody settled; what they reserved stays charged.
local function expire_grants()
  local late = redis.call('ZRANGEBYSCORE', K.reservations, '-inf', string.format('%.0f', now), 'LIMIT', 0, 20)
  if #late == 0 then return end
  local grants, held = granted_to(late), {}
  for i = 1, #late do held[#held + 1] = grants[i] or {member = late[i]} end
  forget_all(held)
end
