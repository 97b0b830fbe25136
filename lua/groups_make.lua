#!lua flags=allow-oom
-- Make a stream's consumer group, from its first entry on, where there is none.
--
-- KEYS  <source>
-- ARGV  group
-- Reply 1 (made) or 0 (it was there)
-- By a script, since at maxmemory XGROUP alone is refused even for a group that is there, and workers that can't join in
-- can't drain it.

local reply = redis.pcall('XGROUP', 'CREATE', K.source, ARGV[1], '0', 'MKSTREAM')
if not reply.err then return 1 end
if string.find(reply.err, 'BUSYGROUP', 1, true) then return 0 end
return reply
