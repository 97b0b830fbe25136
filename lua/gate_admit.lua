#!lua flags=allow-oom
-- Decide for a batch of requests where each goes, charge the budgets and hand over, in one step.
--
-- KEYS  limits slots reservations grants edge:alive premium edge deferred gate:interactive gate:standard gate:batch backlog:interactive backlog:standard backlog:batch backlog:simple backlog:due backlog:deadlines backlog:meta backlog:bodies tenants *
-- ARGV  edge queue length, most that may wait in the backlog; then a row a request (part_row.lua)
-- Reply per row {decision, deployment, position}; decision is premium, edge, deferred, gone
--       (not ours any more), or too_large, expired, queue_full: those are left for the caller to answer
-- Fence pending in its lane's group, and the id not terminal
-- Cost  O(rows * limits + slots of the window); budgets are read and written once a call
-- include clock
-- include budget
-- include entry
-- include pool
-- include limits
-- include backlog
-- include row

local edge_queue, most_waiting = tonumber(ARGV[1]), tonumber(ARGV[2])
local free, waiting = free_slots(edge_queue), backlog.count()
local replies, moves, deferred = {}, {}, 0
local seen = {} -- entries of this very batch: one that is named twice is served once
local queueing = {} -- tenants that were deferred in this very batch, by rank

local function queued_behind_own(row)
  for rank = 0, row.rank do
    if queueing[rank .. row.tenant] then return true end
  end
  return waiting > 0 and backlog.queued(row.tenant, row.rank)
end

local function decide(row)
  local cost = budget.cost(row.prompt, row.output)
  if row.deadline_ms > 0 and row.deadline_ms * 1000 <= now then return 'expired' end
  if not possible(cost) and not row.simple then return 'too_large' end
  if free.premium > 0 and not queued_behind_own(row) then
    local share = row.simple and free.edge > 0 and 'simple' or row.rank
    local deployment = choose(cost, share, row.score)
    if deployment then
      free.premium = free.premium - 1
      row.deployment = deployment
      row.grant = grant(deployment, row.id, row.attempt, row.prompt, row.output)
      return 'premium'
    end
  end
  if row.simple and free.edge > 0 then
    free.edge = free.edge - 1
    return 'edge'
  end
  if not possible(cost) then return 'too_large' end
  if waiting + deferred >= most_waiting then return 'queue_full' end
  deferred = deferred + 1
  queueing[row.rank .. row.tenant] = true
  return 'deferred'
end

for at = 3, #ARGV, ROW_WIDTH do
  local row = read_row(at)
  row.lane = K['gate:' .. CLASSES[row.rank]]
  if seen[row.lane .. row.entry] or not pending(row.lane, 'gate', row.entry) then
    row.decision = 'gone'
  elseif terminal(row.id, row.replay) then
    row.decision = 'gone'
    settled(row.lane, 'gate', row.entry)
  else
    -- A worker that died in the attempt before didn't say that its call is over.
    local former = row.attempt > 1 and granted(row.id, row.attempt - 1)
    if former then forget(former) end
    row.decision = decide(row)
  end
  seen[row.lane .. row.entry] = true
  moves[#moves + 1] = row
end

expire_grants()
save_budgets()

for i, row in ipairs(moves) do
  local position = 0
  if row.decision == 'premium' then
    redis.call('XADD', K.premium, '*', 'request', row.body, 'deployment', row.deployment.name, 'grant', row.grant)
    status_set(row.id, 'state', 'waiting', 'stage', 'premium', 'route', 'premium', 'attempt', row.attempt)
  elseif row.decision == 'edge' then
    redis.call('XADD', K.edge, '*', 'request', row.body)
    status_set(row.id, 'state', 'waiting', 'stage', 'edge', 'route', 'edge', 'attempt', row.attempt)
  elseif row.decision == 'deferred' then
    backlog.put(row.id, row, row.body, 0)
    position = backlog.position(row.score)
    status_set(row.id, 'state', 'deferred', 'stage', 'deferred', 'attempt', row.attempt)
  end
  if row.decision == 'premium' or row.decision == 'edge' or row.decision == 'deferred' then
    settled(row.lane, 'gate', row.entry)
  end
  replies[i] = {row.decision, row.deployment and row.deployment.name or '', position}
end
if deferred > 0 then backlog.notice('deferred') end
return replies
