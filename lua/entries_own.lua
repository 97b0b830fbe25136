#!lua flags=no-writes
-- What a consumer has in hand according to Redis: entries whose delivery it may never have seen, as the reply was lost.
--
-- KEYS  <source>
-- ARGV  group, consumer, most to return
-- Reply {{entry id, fields}, ...}, the oldest first; those whose body is gone aren't among them
-- Not XREADGROUP from 0, which counts each look as a delivery: after a few broken connections and the death of its
-- worker an entry would be taken for poison.

local own = {}
for _, about in ipairs(redis.call('XPENDING', K.source, ARGV[1], '-', '+', ARGV[3], ARGV[2])) do
  local entry = redis.call('XRANGE', K.source, about[1], about[1])[1]
  if entry then own[#own + 1] = entry end
end
return own
