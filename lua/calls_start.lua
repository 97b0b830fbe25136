#!lua flags=allow-oom
-- Start granted calls just before they are made, or give a late grant back.
--
-- KEYS  limits reservations grants premium deferred backlog:interactive backlog:standard backlog:batch backlog:simple backlog:due backlog:deadlines backlog:meta backlog:bodies tenants *
-- ARGV  consumer; then a row a request (part_row.lua)
-- Reply {answers, seen}. Per row {answer, now_ms}: `started` (make the call now), `given_back` (its charge is undone,
--       the request is back at its old place in the backlog), `gone` (no longer ours, or already answered).
--       Per limit of each deployment {deployment, limit, born, cum, used, level, at, server}: what the worker tells
--       (budgets_report.lua) in case that the server loses it
-- Asked again for a call that was started already (the reply was lost), the charge stands, as for any call that
-- may have been made, and the request goes back.
-- A call may only start within half of the limit's `late_us` after its grant: the other half is for the way to the provider.
-- include clock
-- include budget
-- include entry
-- include pool
-- include limits
-- include backlog
-- include row

local consumer, replies, returned = ARGV[1], {}, {}

-- Undo the charge of a grant that was never started; one that was may have been called for.
local function give_back(held)
  if held and held.started then forget(held) elseif held then undo(held) end
end

local function start(row)
  if not owned(K.premium, 'premium', row.entry, consumer) then return 'gone' end
  local held = granted(row.id, row.attempt)
  if terminal(row.id, row.replay) then
    give_back(held)
    settled(K.premium, 'premium', row.entry)
    return 'gone'
  end
  local late = row.deadline_ms > 0 and row.deadline_ms * 1000 <= now
  if held and held.deployment and not held.started and not late and now - held.at <= held.deployment.term.start_within_us then
    redis.call('HSET', K.grants, held.member,
      string.format('%s %.0f %d %d 1', held.number, held.at, held.prompt, held.output))
    status_set(row.id, 'state', 'calling')
    return 'started'
  end
  give_back(held)
  returned[#returned + 1] = row
  return 'given_back'
end

for at = 2, #ARGV, ROW_WIDTH do
  local row = read_row(at)
  replies[#replies + 1] = {start(row), math.floor(now / 1000)}
end
save_budgets()
for _, row in ipairs(returned) do
  backlog.put(row.id, row, row.body, 0)
  status_set(row.id, 'state', 'deferred', 'stage', 'deferred')
  settled(K.premium, 'premium', row.entry)
end
if #returned > 0 then backlog.notice('given_back') end
local seen = {}
for _, deployment in ipairs(deployments) do
  local state = deployment.state
  for _, item in ipairs(state.items) do
    seen[#seen + 1] = {deployment.name, item.limit.name, string.format('%.0f', state.born), string.format('%.0f', item.cum),
      string.format('%.0f', item.used), string.format('%.0f', math.floor(item.level)), string.format('%.0f', state.now), state.server}
  end
end
return {replies, seen}
