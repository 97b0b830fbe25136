-- Budgets, grants and slots of a pool: reading them once, deciding on tables, writing them once.
-- Needs clock, budget; declares limits, slots, reservations, grants, premium, edge and the budgets (REST).

-- A grant that nobody settles is forgotten after this; its charge stands all the same.
local RESERVATION_US = 900 * 1000000
local KEPT_S = 3600

local deployments = {}
do
  local known = redis.call('HGETALL', K.limits)
  local terms = {}
  for i = 1, #known, 2 do terms[known[i]] = known[i + 1] end
  for _, entry in ipairs(REST) do
    local name = string.match(entry.name, '^budget:(.*)$')
    if name and terms[name] then
      local flat, raw, term = {}, redis.call('HGETALL', entry.key), cjson.decode(terms[name])
      for i = 1, #raw, 2 do flat[raw[i]] = raw[i + 1] end
      local state = budget.open(flat, term.limits, now)
      deployments[#deployments + 1] = {name = name, key = entry.key, term = term, state = state}
      deployments[name] = deployments[#deployments]
    end
  end
end

-- Write every budget. Before the first XADD: a charge without its call is safe, a call without its charge isn't.
local function save_budgets()
  for _, deployment in ipairs(deployments) do
    redis.call('HSET', deployment.key, unpack(budget.fields(deployment.state)))
  end
end

-- The deployment that can take `cost` now, the one with most room; else nil and the shortest wait in us.
local function choose(cost, floor)
  local best, shortest = nil, math.huge
  for _, deployment in ipairs(deployments) do
    local wait = budget.wait(deployment.state, cost, floor)
    if wait <= 0 and (not best or budget.room(deployment.state) > budget.room(best.state)) then best = deployment end
    shortest = math.min(shortest, wait)
  end
  return best, shortest
end

-- Whether some deployment could ever take `cost`.
local function possible(cost)
  for _, deployment in ipairs(deployments) do
    local fits = true
    for _, limit in ipairs(deployment.term.limits) do
      fits = fits and (cost[limit.name] or 0) <= limit.limit
    end
    if fits then return true end
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

-- Charge a grant and record it under (id, attempt); returns its own number.
local function grant(deployment, id, attempt, prompt, output)
  budget.charge(deployment.state, budget.cost(prompt, output))
  deployment.state.granted = deployment.state.granted + 1
  -- The budget's time, which is ahead of `now` when the clock stepped back: the slot that holds the charge.
  local at = deployment.state.now
  local number = string.format('%s:%.0f:%.0f', deployment.name, deployment.state.granted, at)
  local member = id .. '#' .. attempt
  redis.call('ZADD', K.reservations, string.format('%.0f', now + RESERVATION_US), member)
  redis.call('HSET', K.grants, member, string.format('%s %.0f %d %d 0', number, at, prompt, output))
  -- What a killed worker leaves is forgotten by later calls; where none come, by these.
  redis.call('EXPIRE', K.grants, KEPT_S)
  redis.call('EXPIRE', K.reservations, KEPT_S)
  return number
end

-- The live grant of (id, attempt), or nil.
local function granted(id, attempt)
  local text = redis.call('HGET', K.grants, id .. '#' .. attempt)
  if not text then return nil end
  local number, at, prompt, output, started = string.match(text, '^(%S+) (%d+) (%d+) (%d+) (%d)$')
  return {
    number = number, at = tonumber(at), prompt = tonumber(prompt), output = tonumber(output), started = started == '1',
    deployment = deployments[string.match(number, '^(.*):%d+:%d+$')],
  }
end

local function forget(id, attempt)
  redis.call('HDEL', K.grants, id .. '#' .. attempt)
  redis.call('ZREM', K.reservations, id .. '#' .. attempt)
end

-- Forget a grant and undo its charge: no call was made for it, and none will be.
local function undo(id, attempt)
  local held = granted(id, attempt)
  if held and held.deployment then
    budget.uncharge(held.deployment.state, budget.cost(held.prompt, held.output), held.at)
  end
  forget(id, attempt)
end

-- Forget a few grants that nobody settled; what they reserved stays charged.
local function expire_grants()
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', K.reservations, '-inf', string.format('%.0f', now), 'LIMIT', 0, 20)) do
    redis.call('HDEL', K.grants, member)
    redis.call('ZREM', K.reservations, member)
  end
end
