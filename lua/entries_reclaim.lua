#!lua flags=allow-oom
-- Take over entries whose owner has given no sign of life for a lease.
--
-- KEYS  <source>
-- ARGV  group, consumer, lease (ms), cursor, most to take
-- Reply {next cursor, {{entry id, deliveries, fields}, ...}, entries whose body is gone (acknowledged away)}
-- The cursor is the caller's to keep: always starting at 0-0 would never reach the tail.

local group, consumer = ARGV[1], ARGV[2]
local claimed = redis.call('XAUTOCLAIM', K.source, group, consumer, ARGV[3], ARGV[4], 'COUNT', ARGV[5])
local taken = {}
for _, found in ipairs(claimed[2]) do
  if found then
    local about = redis.call('XPENDING', K.source, group, found[1], found[1], 1)[1]
    taken[#taken + 1] = {found[1], about and about[4] or 1, found[2]}
  end
end
return {claimed[1], taken, claimed[3] or {}}
