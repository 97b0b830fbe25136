#!lua flags=allow-oom
-- The result of a request, or, while there is none, its delivery to an inbox as soon as there is.
--
-- KEYS  <status>
-- ARGV  inbox, time to live (s) of a status that nobody has made yet; optional `1`: tell unknown ids apart
-- Reply the result as JSON, or '' (it will come to the inbox); if asked to, `unknown` in place of '' while
--       no entry carries the id (the delivery is arranged all the same)
-- allow-oom, though it adds a name: results that nobody can fetch would keep a full memory full.
-- include inbox

local result = redis.call('HGET', K.status, 'result')
if result then return result end
local known = redis.call('EXISTS', K.status) == 1
listen(K.status, ARGV[1])
-- A raw entry that is still on its way has no status yet; one that never comes must not stay for ever.
if not known then redis.call('EXPIRE', K.status, ARGV[2]) end
if ARGV[3] == '1' and redis.call('HEXISTS', K.status, 'entry') == 0 then return 'unknown' end
return ''
