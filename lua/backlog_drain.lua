#!lua flags=allow-oom
-- Serve what fits now out of the backlog: reserve, take out and hand over, in one step.
--
-- KEYS  limits slots reservations grants edge:alive premium edge deferred gate:interactive gate:standard gate:batch backlog:interactive backlog:standard backlog:batch backlog:simple backlog:due backlog:deadlines backlog:meta backlog:bodies tenants backlog:timer *
-- ARGV  consumer, edge queue length, most to move; then the entry ids of the notices in hand
-- Reply {moved to premium, moved to edge, sent back to the gate for a refusal, wait_us until more may fit (-1: nothing waits,
--       or another consumer keeps the timer), entry id of the notice that was kept for it ('' = none)}
-- All notices are acknowledged here, but one where a timer is needed: it stays pending with its keeper, so
-- that a keeper that dies is replaced by the reclaim.
-- include clock
-- include budget
-- include entry
-- include pool
-- include limits
-- include backlog

-- A timer whose time is over by this is taken from its keeper.
local GRACE_US = 500000
-- What is kept for a head stays kept for so long after the time at which it was to go.
local RESERVE_US = 5000000
-- Nothing tells when a worker with free slots appears; this is how long to wait for a notice before looking.
local NO_SLOT_US = 1000000

local consumer, edge_queue, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local free = free_slots(edge_queue)
local moves, back = {}, 0

-- A request has left: nothing is kept for it any more.
local function left(id)
  if reserved and reserved.id == id then
    reserved = nil
    redis.call('HDEL', K.limits, '@head')
  end
end

-- Due retries become eligible; requests past their deadline go back to the gate, which answers them.
-- Whole milliseconds, rounded down as the gate does: sent back too early, they would only return.
local function sort_by_time()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', K['backlog:due'], '-inf', string.format('%.0f', now), 'LIMIT', 0, 100)) do
    redis.call('ZREM', K['backlog:due'], id)
    local meta = backlog.meta(id)
    if meta then backlog.ready(id, meta) end
  end
  local late = redis.call('ZRANGEBYSCORE', K['backlog:deadlines'], '-inf', string.format('%.0f', math.floor(now / 1000)), 'LIMIT', 0, 100)
  for _, id in ipairs(late) do
    local meta = backlog.meta(id)
    if meta then moves[#moves + 1] = {id = id, meta = meta, kind = 'back'} end
  end
end

-- Set when a status couldn't be read, since the pool's slot is moving: what was taken out by then is still handed over.
local unreadable = false

-- The first of an index. What a late finisher has answered meanwhile is dropped, and costs nothing.
local function first_of(index)
  while not unreadable do
    local id = redis.call('ZRANGE', index, 0, 0)[1]
    if not id then return nil end
    local meta = backlog.meta(id)
    local read, over = true, false
    if meta then read, over = pcall(terminal, id, meta.replay) end
    if not read then
      unreadable = true
    elseif not meta then
      redis.call('ZREM', index, id)
    elseif over then
      backlog.drop(id, meta)
      left(id)
    else
      return {id = id, meta = meta}
    end
  end
end

-- The first of each class, best score first.
local function heads()
  local found = {}
  for rank = 0, 2 do found[#found + 1] = first_of(backlog.index(rank)) end
  table.sort(found, function(a, b)
    if a.meta.score ~= b.meta.score then return a.meta.score < b.meta.score end
    return a.meta.rank < b.meta.rank
  end)
  return found
end

-- The first of all waits for budget. Newcomers that find room meanwhile would make it wait for ever, so after a while
-- the deployment that it can have first is kept from all that stand behind it, here and at the gate.
local function reserve(head, deployment, wait)
  local since = reserved and reserved.id == head.id and reserved.till > now and reserved.since or now
  reserved = {id = head.id, since = since, till = now + wait + RESERVE_US, score = head.meta.score, deployment = deployment.name}
  redis.call('HSET', K.limits, '@head', string.format('%.0f %.0f %.17g %s %s', since, reserved.till, head.meta.score,
    deployment.name, head.id))
end

-- Serve one head that fits; else nil and the wait until the first of them does. A head that doesn't fit
-- keeps back the classes below it, so that small work of low rank can't starve it; one that has aged past
-- the heads of higher classes draws with their rights. One that no deployment allows any more (limits were
-- lowered) would wait for ever: the gate refuses it.
local function serve_premium(found)
  local shortest, lowest = math.huge, 2
  for i, head in ipairs(found) do
    local cost = budget.cost(head.meta.prompt, head.meta.output)
    if not possible(cost) then
      head.kind = 'back'
      return head, 0
    end
    local rank = head.meta.rank
    for later = i + 1, #found do rank = math.min(rank, found[later].meta.rank) end
    if head.meta.rank <= lowest then
      local deployment, wait, nearest, open = choose(cost, rank, head.meta.score)
      if deployment then
        head.kind, head.deployment, head.cost = 'premium', deployment, cost
        return head, 0
      end
      if i == 1 and nearest then reserve(head, nearest, wait) end
      -- What is kept for the first isn't waited for: when that goes, all are looked at again.
      shortest, lowest = math.min(shortest, i == 1 and wait or open), math.min(lowest, head.meta.rank)
    end
  end
  return nil, shortest
end

local function serve_edge()
  local first = first_of(K['backlog:simple'])
  if first then first.kind = 'edge' end
  return first
end

local wait = math.huge
local function serve()
  while #moves < most do
    local move, found = nil, heads()
    if free.premium > 0 then
      move, wait = serve_premium(found)
    else
      wait = #found > 0 and NO_SLOT_US or math.huge
    end
    if not move and free.edge_idle > 0 then move = serve_edge() end
    if not move then return end
    if move.kind == 'premium' then
      free.premium = free.premium - 1
      move.grant = grant(move.deployment, move.id, move.meta.attempt, move.meta.prompt, move.meta.output, move.cost)
    elseif move.kind == 'edge' then
      free.edge_idle = free.edge_idle - 1
    end
    move.body = backlog.take(move.id, move.meta)
    left(move.id)
    moves[#moves + 1] = move
  end
  wait = 0
end

if reserved and redis.call('HEXISTS', K['backlog:meta'], reserved.id) == 0 then left(reserved.id) end
sort_by_time()
for _, move in ipairs(moves) do
  move.body = backlog.take(move.id, move.meta)
  left(move.id)
end
serve()
expire_grants()
save_budgets()
save_grants()

local premium, edge = 0, 0
for _, move in ipairs(moves) do
  if move.kind == 'premium' then
    premium = premium + 1
    redis.call('XADD', K.premium, '*', 'request', move.body, 'deployment', move.deployment.name, 'grant', move.grant)
    status_set(move.id, 'state', 'waiting', 'stage', 'premium', 'deferred', '1')
  elseif move.kind == 'edge' then
    edge = edge + 1
    redis.call('XADD', K.edge, '*', 'request', move.body)
    status_set(move.id, 'state', 'waiting', 'stage', 'edge', 'deferred', '1')
  else
    back = back + 1
    redis.call('XADD', K['gate:' .. CLASSES[move.meta.rank]], '*', 'request', move.body)
    status_set(move.id, 'state', 'waiting', 'stage', 'gate')
  end
end

-- When to look again: budget, due time or deadline, whichever is first.
local function next_look()
  local at = now + (unreadable and NO_SLOT_US or wait)
  local due = redis.call('ZRANGE', K['backlog:due'], 0, 0, 'WITHSCORES')
  local deadline = redis.call('ZRANGE', K['backlog:deadlines'], 0, 0, 'WITHSCORES')
  if due[2] then at = math.min(at, tonumber(due[2])) end
  if deadline[2] then at = math.min(at, tonumber(deadline[2]) * 1000 + 1000) end
  return at
end

local keep, look = '', next_look()
if look == math.huge then
  redis.call('DEL', K['backlog:timer'])
else
  local timer = redis.call('HMGET', K['backlog:timer'], 'consumer', 'at', 'entry')
  local at = tonumber(timer[2])
  -- A keeper is one only while it holds its notice: whoever takes that over becomes the keeper.
  local elsewhere = timer[3] and timer[1] ~= consumer and at > now - GRACE_US and at <= look + 1000
    and owned(K.deferred, 'deferred', timer[3], timer[1])
  if not elsewhere and ARGV[4] then
    keep = ARGV[4]
    redis.call('HSET', K['backlog:timer'], 'consumer', consumer, 'at', string.format('%.0f', look), 'entry', keep)
    redis.call('EXPIRE', K['backlog:timer'], 3600)
  elseif not elsewhere then
    -- Our notice was lost, to somebody who may have found us to be the keeper: begin anew.
    redis.call('DEL', K['backlog:timer'])
    backlog.notice('timer')
  end
end
local over = {}
for i = 4, #ARGV do
  if ARGV[i] ~= keep then over[#over + 1] = ARGV[i] end
end
settled(K.deferred, 'deferred', over)
return {premium, edge, back, keep ~= '' and math.max(0, math.ceil(look - now)) or -1, keep}
