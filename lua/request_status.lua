#!lua flags=no-writes
-- Where a request is; in the backlog also its position and how long the work ahead will take.
--
-- KEYS  <status> limits backlog:interactive backlog:standard backlog:batch backlog:meta backlog:due
-- ARGV  request id
-- Reply {flat status, position (0 = not in the backlog), eta_ms}
-- The estimate: requests ahead, each as dear as this one, at the refill of all deployments together.
-- include pace

local flat = redis.call('HGETALL', K.status)
local text = redis.call('HGET', K['backlog:meta'], ARGV[1])
if not text then return {flat, 0, 0} end
local rank, prompt, output, score = string.match(text, '^(%d) %d (%d+) (%d+) %d+ %d+ (%S+) ')
local position = 1
for i, class in ipairs({'interactive', 'standard', 'batch'}) do
  local index = K['backlog:' .. class]
  -- In its own class equal scores go by id; a request that isn't due yet stands in no class.
  local ahead = i - 1 == tonumber(rank) and redis.call('ZRANK', index, ARGV[1])
  position = position + (ahead or redis.call('ZCOUNT', index, '-inf', '(' .. score))
end
local per_us = pace(tonumber(prompt) + tonumber(output))
return {flat, position, per_us > 0 and math.ceil(position / per_us / 1000) or 0}
