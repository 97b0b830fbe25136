#!lua flags=allow-oom
-- Put requests whose attempt failed into the backlog, each with a due time.
--
-- KEYS  limits reservations grants deferred backlog:interactive backlog:standard backlog:batch backlog:simple backlog:due backlog:deadlines backlog:meta backlog:bodies tenants <source> *
-- ARGV  group; a list in MessagePack, per request deployment, wait_us, pause_us, why, narrow (0|1); then the requests
--       (part_row.lua), whose attempt is the next one
-- Reply how many were put back; the others were no longer ours
-- The reservation of the failed attempt stands: the provider may have counted the call.
-- A pause closes the deployment for every class until it is over; narrow: its rate was too high for the provider.
-- include clock
-- include budget
-- include feedback
-- include entry
-- include pool
-- include backlog
-- include row

local group, failures, failed, rows, ids = ARGV[1], cmsgpack.unpack(ARGV[2]), read_rows(3), {}, {}
for i, row in ipairs(failed) do ids[i] = row.entry end
local waits = pending(K.source, group, ids)
for i, row in ipairs(failed) do
  local name, wait, pause, why, narrow = unpack(failures, 5 * i - 4, 5 * i)
  local deployment = deployments[name]
  row.held = granted(row.id, row.attempt - 1)
  row.due = now + wait
  -- Neither: the reply to the first time was lost, and all of this was done then.
  if deployment and pause > 0 and (row.held or waits[row.entry]) then
    local state = deployment.state
    budget.pause(state, now + pause, row.held and row.held.at or now, why, narrow == 1)
    state.changed = true
  end
  if waits[row.entry] then
    waits[row.entry] = nil
    rows[#rows + 1] = row
    if row.held then forget(row.held) end
  end
end
save_budgets()
local again, over = {}, {}
for _, row in ipairs(rows) do
  over[#over + 1] = row.entry
  if not terminal(row.id, row.replay) then again[#again + 1] = row end
end
backlog.put(again)
for _, row in ipairs(again) do
  status_set(row.id, 'state', 'deferred', 'stage', 'deferred', 'attempt', row.attempt)
end
settled(K.source, group, over)
if #again > 0 then backlog.notice('retry') end
return #again
