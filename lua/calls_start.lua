#!lua flags=allow-oom
-- Start granted calls just before they are made, or give a late grant back.
--
-- KEYS  limits reservations grants premium deferred backlog:interactive backlog:standard backlog:batch backlog:simple backlog:due backlog:deadlines backlog:meta backlog:bodies tenants *
-- ARGV  consumer; 1 = asked again by who got no answer, and so has called for none of these; then the requests (part_row.lua)
-- Reply {answers, seen}. Per row {answer, now_ms}: `started` (make the call now), `given_back` (its charge is undone,
--       the request is back at its old place in the backlog), `gone` (no longer ours, or already answered).
--       Per limit of each deployment {deployment, limit, born, cum, used, level, at, server}: what the worker tells
--       (budgets_report.lua) in case that the server loses it
-- A call that was started already may have been made: its charge stands, and the request goes back. Unless the one who
-- started it asks again, for want of the reply: then nothing was called, and it is as if it were asked for first.
-- A call may only start within half of the limit's `late_us` after its grant: the other half is for the way to the provider.
-- include clock
-- include budget
-- include entry
-- include pool
-- include limits
-- include backlog
-- include row

local consumer, again, rows, ids, members = ARGV[1], ARGV[2] == '1', read_rows(3), {}, {}
for i, row in ipairs(rows) do ids[i], members[i] = row.entry, row.id .. '#' .. row.attempt end
local ours, grants = pending(K.premium, 'premium', ids, consumer), granted_to(members)
local replies, returned, over, started = {}, {}, {}, {}

local function start(row, held)
  if not ours[row.entry] then return 'gone' end
  ours[row.entry] = nil
  if held and again then held.started = false end
  if terminal(row.id, row.replay) then
    give_back(held)
    over[#over + 1] = row.entry
    return 'gone'
  end
  local late = row.deadline_ms > 0 and row.deadline_ms * 1000 <= now
  if held and held.deployment and not held.started and not late and now - held.at <= held.deployment.term.start_within_us then
    started[#started + 1] = held.member
    started[#started + 1] = grant_text(held.number, string.format('%.0f', held.at), held.prompt, held.output, 1)
    status_set(row.id, 'state', 'calling')
    return 'started'
  end
  give_back(held)
  returned[#returned + 1], over[#over + 1] = row, row.entry
  return 'given_back'
end

for i, row in ipairs(rows) do replies[i] = {start(row, grants[i]), math.floor(now / 1000)} end
save_budgets()
if #started > 0 then redis.call('HSET', K.grants, unpack(started)) end
backlog.put(returned)
for _, row in ipairs(returned) do status_set(row.id, 'state', 'deferred', 'stage', 'deferred') end
settled(K.premium, 'premium', over)
-- What was dropped has freed its slot and its charge.
if #returned > 0 or #over > 0 and backlog.count() > 0 then backlog.notice('given_back') end
local seen = {}
for _, deployment in ipairs(deployments) do
  local state = deployment.state
  for _, item in ipairs(state.items) do
    seen[#seen + 1] = {deployment.name, item.name, string.format('%.0f', state.born), string.format('%.0f', item.cum),
      string.format('%.0f', item.used), string.format('%.0f', math.floor(item.level)), string.format('%.0f', state.now), state.server}
  end
end
return {replies, seen}
