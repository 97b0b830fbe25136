#!lua flags=allow-oom
-- A worker's sign of life: its slots for the gate, and whether the edge is alive.
--
-- KEYS  slots edge:alive
-- ARGV  consumer, premium slots, edge slots (0 while the edge isn't warm), time to live (ms); slots -1 = leaving
-- Reply Redis time in ms
-- include clock

local premium, edge, ttl_ms = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if premium < 0 then
  redis.call('HDEL', K.slots, ARGV[1])
else
  redis.call('HSET', K.slots, ARGV[1], string.format('%d %d %.0f', premium, edge, now + ttl_ms * 1000))
  redis.call('PEXPIRE', K.slots, 3600000)
  if edge > 0 then redis.call('SET', K['edge:alive'], '1', 'PX', ARGV[4]) end
end
return math.floor(now / 1000)
