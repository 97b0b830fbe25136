#!lua flags=allow-oom
-- Make pending entries free for the next reclaim at once: a stopping worker's own, or an operator's choice.
--
-- KEYS  <source>
-- ARGV  group, consumer to name, idle (ms) to set, owner that is required ('' = any), deliveries to take back, entry ids
-- Reply the entry ids that were released
-- include entry

local group, consumer, idle, owner, back, released = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), {}
for i = 6, #ARGV do
  local about = redis.call('XPENDING', K.source, group, ARGV[i], ARGV[i], 1)[1]
  if about and (owner == '' or about[2] == owner) then
    local count = math.max(0, about[4] - back)
    redis.call('XCLAIM', K.source, group, consumer, 0, ARGV[i], 'IDLE', idle, 'RETRYCOUNT', count, 'JUSTID')
    released[#released + 1] = ARGV[i]
  end
end
return released
