#!lua flags=allow-oom
-- Move entries to `dead`, whole, and answer their callers with a typed error, in one step.
--
-- KEYS  limits reservations grants <source> dead responses backlog:interactive backlog:standard backlog:batch backlog:simple backlog:due backlog:deadlines backlog:meta backlog:bodies tenants *
-- ARGV  group, results kept, status TTL (s), stream name, dead letters kept; then per entry: entry id,
--       deliveries, reason, message, time (ms), attempt, a result (part_result.lua)
-- Reply per entry 1 (buried) or 0 (no longer pending here)
-- A dead letter's own fields are stream, entry, id, deliveries, reason, message, at_ms; the original ones follow
-- behind the prefix `field:`; of an entry with thousands of them, more than Lua can pass on, as one JSON list, `fields`.
-- Its grant goes too: that of its call, or, at the gate, of the attempt before, whose worker died.
-- include clock
-- include budget
-- include entry
-- include carrier
-- include pool
-- include backlog
-- include result

local MOST_PARTS = 4000
local group, kept, ttl_s, stream, dead_kept = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local replies, at = {}, 6
while at <= #ARGV do
  local entry, deliveries, reason, message, at_ms = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local attempt, result = tonumber(ARGV[at + 5]), nil
  result, at = read_result(at + 6)
  if pending(K.source, group, {entry})[entry] then
    local carried, mark, inboxes = status_read(result.id, 'entry', 'terminal', 'inbox')
    local letter = {
      'stream', stream, 'entry', entry, 'id', result.id, 'deliveries', deliveries,
      'reason', reason, 'message', message, 'at_ms', at_ms,
    }
    local found = redis.call('XRANGE', K.source, entry, entry)[1]
    local parts = found and found[2] or {}
    if group == 'premium' then give_back(granted(result.id, attempt)) end
    if group == 'gate' and attempt > 1 then give_back(granted(result.id, attempt - 1)) end
    save_budgets()
    if #parts > MOST_PARTS then
      letter[#letter + 1], letter[#letter + 2], parts = 'fields', cjson.encode(parts), {}
    end
    for i, value in ipairs(parts) do
      letter[#letter + 1] = i % 2 == 1 and 'field:' .. value or value
    end
    redis.call('XADD', K.dead, 'MAXLEN', '~', dead_kept, '*', unpack(letter))
    local ours_is = carrier(K.source, entry)
    local stranger = group == 'classify' and carried and carried ~= ours_is
    if not stranger and not ended(mark, result.replay) then
      write_result(result, kept, ttl_s, inboxes, ours_is)
      status_set(result.id, 'dead', '1')
    end
    settled(K.source, group, {entry})
    replies[#replies + 1] = 1
  else
    replies[#replies + 1] = 0
  end
end
return replies
