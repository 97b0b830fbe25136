#!lua
-- Where a request is; in the backlog also its position and how long the work ahead will take.
--
-- KEYS  <status> limits backlog:interactive backlog:standard backlog:batch backlog:meta backlog:due
-- ARGV  request id
-- Reply {flat status, position (0 = not in the backlog), eta_ms}
-- The estimate: requests ahead, each as dear as this one, at the refill of all deployments together.

local flat = redis.call('HGETALL', K.status)
local text = redis.call('HGET', K['backlog:meta'], ARGV[1])
if not text then return {flat, 0, 0} end
local prompt, output, score = string.match(text, '^%d %d (%d+) (%d+) %d+ %d+ (%S+) ')
local position = 1
for _, class in ipairs({'interactive', 'standard', 'batch'}) do
  position = position + redis.call('ZCOUNT', K['backlog:' .. class], '-inf', '(' .. score)
end
local cost = {rpm = 1, tpm = tonumber(prompt) + tonumber(output)}
local per_us, terms = 0, redis.call('HGETALL', K.limits)
for i = 1, #terms, 2 do
  if not string.find(terms[i], '@', 1, true) then
    local slowest = math.huge
    for _, limit in ipairs(cjson.decode(terms[i + 1]).limits) do
      if cost[limit.name] and cost[limit.name] > 0 then slowest = math.min(slowest, limit.rate / cost[limit.name]) end
    end
    if slowest < math.huge then per_us = per_us + slowest end
  end
end
local eta_ms = per_us > 0 and position / per_us / 1000 or 0
return {flat, position, math.ceil(eta_ms)}
