#!lua flags=allow-oom
-- End the pauses of deployments and the narrowing of their rates, as an operator who mended the cause wants it.
--
-- KEYS  limits deferred backlog:meta *
-- Reply names of the deployments that were paused or narrowed
-- include clock
-- include budget
-- include pool
-- include notice

local resumed = {}
for _, deployment in ipairs(deployments) do
  local state = deployment.state
  if state.pause_until > 0 or state.factor < 1 then
    state.pause_until, state.probe_at, state.why, state.factor, state.changed = 0, 0, '', 1, true
    resumed[#resumed + 1] = deployment.name
  end
end
save_budgets()
look_again('resumed')
return resumed
