-- Redis's own clock in microseconds: workers with skewed clocks share one truth.
local now
do
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
