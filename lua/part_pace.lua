-- How fast all deployments of the pool together can take requests of one cost; declares limits.

-- Requests per microsecond, each of `tokens`; 0 while no worker has put limits in place.
local function pace(tokens)
  local cost, per_us, terms = {rpm = 1, tpm = tokens}, 0, redis.call('HGETALL', K.limits)
  for i = 1, #terms, 2 do
    if not string.find(terms[i], '@', 1, true) then
      local slowest = math.huge
      for _, limit in ipairs(cjson.decode(terms[i + 1]).limits) do
        if cost[limit.name] and cost[limit.name] > 0 then slowest = math.min(slowest, limit.rate / cost[limit.name]) end
      end
      if slowest < math.huge then per_us = per_us + slowest end
    end
  end
  return per_us
end
