#!lua flags=allow-oom
-- Remove consumers that hold nothing: one by name, and every one idle for long.
--
-- KEYS  <source>
-- ARGV  group, consumer to remove now ('' = none), idle (ms) after which any empty consumer goes
-- Reply how many were removed
-- Checked and removed in one step: deleting a consumer would drop what it holds.

local removed = 0
for _, raw in ipairs(redis.call('XINFO', 'CONSUMERS', K.source, ARGV[1])) do
  local about = {}
  for i = 1, #raw, 2 do about[raw[i]] = raw[i + 1] end
  if about.pending == 0 and (about.name == ARGV[2] or about.idle > tonumber(ARGV[3])) then
    redis.call('XGROUP', 'DELCONSUMER', K.source, ARGV[1], about.name)
    removed = removed + 1
  end
end
return removed
