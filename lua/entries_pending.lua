#!lua flags=no-writes
-- What a group's consumers have in hand, oldest entry first: for operators who look for stuck entries.
--
-- KEYS  <source>
-- ARGV  group, least idle time (ms), entry id to start at, most to return
-- Reply {{entry id, consumer, idle (ms), deliveries, field `id` or '', start of field `request` or ''}, ...}
-- A request begins with its id, so its start is enough to name it; bodies may be large.

local HEAD = 1024

local known = redis.pcall('XPENDING', K.source, ARGV[1], 'IDLE', ARGV[2], ARGV[3], '+', ARGV[4])
if known.err then return {} end -- no such stream or group: nothing is in hand
local found = {}
for i, about in ipairs(known) do
  local entry, id, request = redis.call('XRANGE', K.source, about[1], about[1])[1], '', ''
  local flat = entry and entry[2] or {}
  for j = 1, #flat, 2 do
    if flat[j] == 'id' then id = flat[j + 1] end
    if flat[j] == 'request' then request = string.sub(flat[j + 1], 1, HEAD) end
  end
  found[i] = {about[1], about[2], about[3], about[4], id, request}
end
return found
