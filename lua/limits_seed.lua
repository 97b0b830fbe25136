#!lua
-- Put the configured limits in place, unless they were put there before: what an operator set live stays.
--
-- KEYS  limits
-- ARGV  per deployment: name, fingerprint of the configuration, terms as JSON
-- Reply the limits' version
-- Fields of `limits`: <deployment> = terms, <deployment>@seed = fingerprint, @version = count of changes

for i = 1, #ARGV, 3 do
  local name = ARGV[i]
  if redis.call('HGET', K.limits, name .. '@seed') ~= ARGV[i + 1] then
    redis.call('HSET', K.limits, name, ARGV[i + 2], name .. '@seed', ARGV[i + 1])
    redis.call('HINCRBY', K.limits, '@version', 1)
  end
end
return tonumber(redis.call('HGET', K.limits, '@version') or 0)
