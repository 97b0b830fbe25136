#!lua flags=allow-oom
-- A worker's sign of life: its slots for the gate, and whether the edge is alive.
--
-- KEYS  slots edge:alive deferred backlog:meta backlog:timer
-- ARGV  consumer, premium slots, edge slots (0 while the edge isn't warm), time to live (ms); slots -1 = leaving
-- Reply Redis time in ms
-- Where work waits and the time to look at it is over, nobody keeps that time any more: a notice has somebody
-- look, long before the keeper's lease would run out.
-- include clock

local OVERDUE_US = 1000000

local premium, edge, ttl_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if premium < 0 then
  redis.call('HDEL', K.slots, ARGV[1])
else
  redis.call('HSET', K.slots, ARGV[1], string.format('%d %d %.0f', premium, edge, now + ttl_ms * 1000))
  redis.call('PEXPIRE', K.slots, 3600000)
  if edge > 0 then redis.call('SET', K['edge:alive'], '1', 'PX', ARGV[4]) end
end
if redis.call('EXISTS', K['backlog:meta']) == 1 then
  local at = tonumber(redis.call('HGET', K['backlog:timer'], 'at'))
  if not at or at < now - OVERDUE_US then redis.call('XADD', K.deferred, '*', 'why', 'overdue') end
end
return math.floor(now / 1000)
