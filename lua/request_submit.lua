#!lua
-- Take in a request once: known ids are not added again, so that this is safe to repeat.
--
-- KEYS  <status> <lane> ingest ingest:batch gate:interactive gate:standard gate:batch backlog:meta
-- ARGV  most that may wait, inbox ('' = none), then the entry's fields
-- Reply {`added` | `known` | `full`, how many wait}
-- Without allow-oom: at maxmemory Redis itself refuses what comes in, while work goes on and drains.

local waiting = redis.call('HLEN', K['backlog:meta'])
for _, lane in ipairs({'ingest', 'ingest:batch', 'gate:interactive', 'gate:standard', 'gate:batch'}) do
  waiting = waiting + redis.call('XLEN', K[lane])
end
if redis.call('HEXISTS', K.status, 'entry') == 1 then return {'known', waiting} end
if waiting >= tonumber(ARGV[1]) then return {'full', waiting} end
local fields = {}
for i = 3, #ARGV do fields[#fields + 1] = ARGV[i] end
local entry = redis.call('XADD', K.lane, '*', unpack(fields))
redis.call('HSET', K.status, 'entry', entry, 'state', 'submitted', 'stage', 'classify')
redis.call('PERSIST', K.status)
if ARGV[2] ~= '' then redis.call('HSET', K.status, 'inbox', ARGV[2]) end
return {'added', waiting}
