#!lua flags=allow-oom
-- Decide for a batch of requests where each goes, charge the budgets and hand over, in one step.
--
-- KEYS  limits slots reservations grants edge:alive premium edge deferred gate:interactive gate:standard gate:batch backlog:interactive backlog:standard backlog:batch backlog:simple backlog:due backlog:deadlines backlog:meta backlog:bodies tenants *
-- ARGV  edge queue length, most that may wait in the backlog; then the requests (part_row.lua)
-- Reply per row decision, deployment; decision is premium, edge, deferred, gone
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
local replies, moves, deferred = {}, read_rows(3), {}
local queued = {} -- the highest rank of which a tenant has work waiting, that of this very batch included

local function decide(row)
  local cost = budget.cost(row.prompt, row.output)
  if row.deadline_ms > 0 and row.deadline_ms * 1000 <= now then return 'expired' end
  if free.premium > 0 and (queued[row.tenant] or 3) > row.rank then
    local share = row.simple and free.edge > 0 and 'simple' or row.rank
    local deployment = choose(cost, share, row.score)
    if deployment then
      free.premium = free.premium - 1
      row.deployment = deployment
      row.grant = grant(deployment, row.id, row.attempt, row.prompt, row.output, cost)
      return 'premium'
    end
  end
  if row.simple and free.edge > 0 then
    free.edge = free.edge - 1
    return 'edge'
  end
  if not possible(cost) then return 'too_large' end
  if waiting + #deferred >= most_waiting then return 'queue_full' end
  deferred[#deferred + 1] = row
  queued[row.tenant] = min(queued[row.tenant] or 3, row.rank)
  return 'deferred'
end

-- The rows of each lane, in their order, and which of their entries are still to be settled.
local waits, lanes, lane_of = {}, {}, {}
for rank = 0, 2 do lane_of[rank] = K['gate:' .. CLASSES[rank]] end
for i = 1, #moves do
  local row = moves[i]
  local lane = lane_of[row.rank]
  row.lane = lane
  if not lanes[lane] then lanes[lane] = {} end
  lanes[lane][#lanes[lane] + 1] = row.entry
end
if waiting > 0 then queued = backlog.queued(moves) end
for lane, ids in pairs(lanes) do
  waits[lane], lanes[lane] = pending(lane, 'gate', ids), {}
end

for _, row in ipairs(moves) do
  if not waits[row.lane][row.entry] then
    row.decision = 'gone'
  else
    -- A worker that died in the attempt before didn't say that its call is over.
    if row.attempt > 1 then give_back(granted(row.id, row.attempt - 1)) end
    if terminal(row.id, row.replay) then
      row.decision = 'gone'
      table.insert(lanes[row.lane], row.entry)
    else
      row.decision = decide(row)
    end
  end
  waits[row.lane][row.entry] = nil -- one that is named twice is served once
end

expire_grants()
save_budgets()
save_grants()
backlog.put(deferred)

local function tell(row, state, stage)
  if row.attempt > 1 then
    status_set(row.id, 'state', state, 'stage', stage, 'attempt', row.attempt)
  else
    status_set(row.id, 'state', state, 'stage', stage)
  end
end

for i, row in ipairs(moves) do
  if row.decision == 'premium' then
    redis.call('XADD', K.premium, '*', 'request', row.body, 'deployment', row.deployment.name, 'grant', row.grant)
    tell(row, 'waiting', 'premium')
  elseif row.decision == 'edge' then
    redis.call('XADD', K.edge, '*', 'request', row.body)
    tell(row, 'waiting', 'edge')
  elseif row.decision == 'deferred' then
    tell(row, 'deferred', 'deferred')
  end
  if row.decision == 'premium' or row.decision == 'edge' or row.decision == 'deferred' then
    table.insert(lanes[row.lane], row.entry)
  end
  replies[2 * i - 1], replies[2 * i] = row.decision, row.deployment and row.deployment.name or ''
end
for lane, ids in pairs(lanes) do settled(lane, 'gate', ids) end
if #deferred > 0 then backlog.notice('deferred') end
return replies
