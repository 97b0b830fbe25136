#!lua flags=allow-oom
-- What a worker has to tell of its calls: what providers' headers said, and what the budgets were when it last saw them.
--
-- KEYS  limits deferred backlog:meta *
-- ARGV  rows of nine: `heard`, deployment, limit, left, of how many, full again in (us; 0 = not said), sent at (us),
--       what the call had reserved of it, whether it was answered (0|1);
--       or `seen`, deployment, limit, born, cum, used, level, at (us), server
-- Reply {deployment, limit, alarm} for each of part_feedback.lua's alarms
-- include clock
-- include budget
-- include feedback
-- include pool
-- include notice

local alarms, reopened = {}, false
for at = 1, #ARGV, 9 do
  local deployment, name, n = deployments[ARGV[at + 1]], ARGV[at + 2], {}
  for i = 1, 5 do n[i] = tonumber(ARGV[at + 2 + i]) end
  local state = deployment and deployment.state
  if state and ARGV[at] == 'seen' then
    state.changed = budget.seen(state, name, n[1], n[2], n[3], n[4], n[5], ARGV[at + 8]) or state.changed
  elseif state then
    local paused = state.pause_until
    if ARGV[at + 8] == '1' then budget.passed(state, n[4]) end
    reopened = reopened or state.pause_until < paused
    local alarm = budget.heard(state, name, n[1], n[2], n[3], n[4], n[5])
    state.changed = true
    if alarm then alarms[#alarms + 1] = {deployment.name, name, alarm} end
  end
end
save_budgets()
if reopened then look_again('reopened') end
return alarms
