#!lua flags=allow-oom
-- End a request that its producer doesn't want any more: answered at once, wherever it stands, and called for no more.
--
-- KEYS  <status> limits responses deferred cancelled backlog:interactive backlog:standard backlog:batch backlog:simple backlog:due backlog:deadlines backlog:meta backlog:bodies tenants
-- ARGV  request id; its metadata where the caller has looked at it, else ''; its result as JSON, then its flat fields, both
--       without what is known only here: route, attempt, replay, metadata, waited_ms, total_ms
-- Reply {`done`, the terminal result as JSON}: of this, or the one that it had already, which stands;
--       {`unknown`, ''}: no entry carries the id; {`metadata`, as it was written}: check it and ask again, nothing was done
-- A request's result is written here; what else there is of it drops at its next fence, which also frees what it holds: its
-- slot and, while its call isn't started, its charge (calls_start.lua). So no budget is needed here. Workers hear of
-- it by the stream `cancelled` and close a call that runs.
-- Cost  O(log n) of the backlog
-- include clock
-- include entry
-- include backlog
-- include result

-- Who has heard nothing for so long starts anew; so many are told at most.
local TOLD_S, TOLD = 3600, 10000
-- Until a worker has said how many results are kept, and for how long (pipeline/store/gate.py).
local RETENTION = '100000 3600'

local id = ARGV[1]
local entry, mark, state, stage, replay, attempt, streamed, metadata, inboxes =
  status_read(id, 'entry', 'terminal', 'state', 'stage', 'replay', 'attempt', 'streamed', 'metadata', 'inbox')
replay = string.format('%d', tonumber(replay) or 0)
if ended(mark, replay) then
  local result = status_get(id, 'result')
  return {result and 'done' or 'unknown', result or ''}
end
if not entry then return {'unknown', ''} end

-- Until it is claimed, nobody has looked at what its producer wants back, and whether its body asks for deltas.
if stage == 'classify' then
  if metadata and ARGV[2] == '' then return {'metadata', metadata} end
  metadata, streamed = metadata and ARGV[2], '1'
end

local retention, head = unpack(redis.call('HMGET', K.limits, '@results', '@head'))
local kept, ttl_s = string.match(retention or RETENTION, '^(%d+) (%d+)$')
local calling = state == 'calling'
local route = calling and 'premium' or 'none'
local entered = tonumber(string.match(entry, ' (%d+)')) or now / 1000
local since = string.format('%.3f', math.max(0, now / 1000 - entered))
local waited = calling and '-1' or since
attempt, metadata = string.format('%d', tonumber(attempt) or 1), metadata or '{}'
local json = string.sub(ARGV[3], 1, -2) .. ',"route":"' .. route .. '","attempt":' .. attempt .. ',"replay":' .. replay
  .. ',"metadata":' .. metadata .. ',"waited_ms":' .. waited .. ',"total_ms":' .. since .. '}'
local waits = backlog.meta(id)
local frees = head and string.sub(head, -#id - 1) == ' ' .. id
if waits then frees = backlog.first(id, waits) or frees end
write_result({id = id, replay = replay, streamed = streamed == '1', json = json, fields = {'route', route, 'attempt', attempt,
  'replay', replay, 'metadata', metadata, 'waited_ms', waited, 'total_ms', since, unpack(ARGV, 4)}}, kept, ttl_s, inboxes)
if not waits or waits.replay < tonumber(replay) then
  redis.call('XADD', K.cancelled, 'MAXLEN', '~', TOLD, '*', 'id', id, 'replay', replay)
  redis.call('EXPIRE', K.cancelled, TOLD_S)
end
-- Those behind the first may fit where it didn't, and what was kept for it is free.
if frees then backlog.notice('cancelled') end
return {'done', json}
