#!lua
-- Take in a request once: known ids are not added again, so that this is safe to repeat.
--
-- KEYS  <status> <lane> limits ingest ingest:batch gate:interactive gate:standard gate:batch backlog:meta closed
-- ARGV  most that may wait, inbox ('' = none), then the entry's fields
-- Reply {`added` | `known` | `full` | `closed` (the pool is drained), how many wait, ms until there is room again (only if
--       full; -1 = can't be told)}
-- The estimate: as many as are too many, each as dear as those in the backlog, at the refill of all deployments.
-- Without allow-oom: at maxmemory Redis itself refuses what comes in, while work goes on and drains.
-- include inbox
-- include carrier
-- include pace

local SAMPLE = 16

-- Tokens of a request, on the average of a few that wait; 0 when none of them has been counted yet.
local function usual_tokens()
  local sum, sample = 0, redis.call('HRANDFIELD', K['backlog:meta'], SAMPLE, 'WITHVALUES')
  for i = 2, #sample, 2 do
    local prompt, output = string.match(sample[i], '^%d %d (%d+) (%d+) ')
    sum = sum + tonumber(prompt) + tonumber(output)
  end
  return #sample > 0 and sum / (#sample / 2) or 0
end

local waiting, most = redis.call('HLEN', K['backlog:meta']), tonumber(ARGV[1])
for _, lane in ipairs({'ingest', 'ingest:batch', 'gate:interactive', 'gate:standard', 'gate:batch'}) do
  waiting = waiting + redis.call('XLEN', K[lane])
end
local known = redis.call('HGET', K.status, 'entry')
if known then
  -- A write, so that whoever waits for a replica behind this waits for what came before it.
  redis.call('HSET', K.status, 'entry', known)
  if ARGV[2] ~= '' then listen(K.status, ARGV[2]) end
  return {'known', waiting, 0}
end
if redis.call('GET', K.closed) then return {'closed', waiting, 0} end
if waiting >= most then
  local per_us = pace(usual_tokens())
  return {'full', waiting, per_us > 0 and math.ceil((waiting - most + 1) / per_us / 1000) or -1}
end
local fields = {}
for i = 3, #ARGV do fields[#fields + 1] = ARGV[i] end
local entry = redis.call('XADD', K.lane, '*', unpack(fields))
redis.call('HSET', K.status, 'entry', carrier(K.lane, entry), 'state', 'submitted', 'stage', 'classify')
for i = 1, #fields, 2 do
  if fields[i] == 'metadata' then redis.call('HSET', K.status, 'metadata', fields[i + 1]) end
end
redis.call('PERSIST', K.status)
-- Others may have asked for it before it came: they stay.
if ARGV[2] ~= '' then listen(K.status, ARGV[2]) end
return {'added', waiting, 0}
