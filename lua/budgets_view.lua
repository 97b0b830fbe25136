#!lua flags=no-writes
-- What the budgets are now, for people and gauges: read with the gate's own arithmetic, nothing is changed.
--
-- KEYS  limits *
-- Reply per deployment {name, closed for (us), why, in flight, factor (per mille), refunds (0|1), limits}; each of its limits
--       {name, level, capacity, used, allowed}, all whole numbers, rounded down
-- include clock
-- include budget
-- include feedback
-- include pool

local function whole(number) return string.format('%.0f', math.floor(number)) end

local reply = {}
for i, deployment in ipairs(deployments) do
  local state, limits = deployment.state, {}
  for j, item in ipairs(state.items) do
    limits[j] = {item.name, whole(item.level), whole(item.capacity), whole(item.used), whole(item.allowed)}
  end
  reply[i] = {deployment.name, whole(math.max(0, state.pause_until - state.now)), state.why, whole(state.in_flight),
    whole(state.factor * 1000), budget.refunding(state) and 1 or 0, limits}
end
return reply
