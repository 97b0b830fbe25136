#!lua flags=allow-oom
-- Take over entries whose owner has given no sign of life for a lease.
--
-- KEYS  <source>
-- ARGV  group, consumer, lease (ms), cursor, most to take
-- Reply {next cursor, {{entry id, deliveries, fields}, ...}, entries whose body is gone (acknowledged away)}
-- The cursor is the caller's to keep: always starting at 0-0 would never reach the tail.
-- Deliveries include the coming one, but are counted here only for entries that were handed back unused: the
-- others are handled one by one, and those behind a killer must not be charged for deliveries they never had.

local group, consumer = ARGV[1], ARGV[2]
local claimed = redis.call('XAUTOCLAIM', K.source, group, consumer, ARGV[3], ARGV[4], 'COUNT', ARGV[5], 'JUSTID')
local taken, lost = {}, claimed[3] or {}
for _, entry in ipairs(claimed[2]) do
  local count = redis.call('XPENDING', K.source, group, entry, entry, 1)[1][4]
  local found = redis.call('XRANGE', K.source, entry, entry)[1]
  if not found then
    redis.call('XACK', K.source, group, entry)
    lost[#lost + 1] = entry
  else
    if count == 0 then redis.call('XCLAIM', K.source, group, consumer, 0, entry, 'RETRYCOUNT', 1, 'JUSTID') end
    taken[#taken + 1] = {entry, count + 1, found[2]}
  end
end
return {claimed[1], taken, lost}
