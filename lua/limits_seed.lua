#!lua
-- Put the configured limits in place, unless they were put there before: what an operator set live stays.
--
-- KEYS  limits *
-- ARGV  per deployment: name, fingerprint of the configuration, terms as JSON
-- Reply the limits' version
-- Fields of `limits`: <deployment> = terms, <deployment>@seed = fingerprint, @version = count of changes
-- A budget that isn't there yet starts cold now, and not when the first request has to wait for it.
-- include clock
-- include budget

for i = 1, #ARGV, 3 do
  local name = ARGV[i]
  if redis.call('HGET', K.limits, name .. '@seed') ~= ARGV[i + 1] then
    redis.call('HSET', K.limits, name, ARGV[i + 2], name .. '@seed', ARGV[i + 1])
    redis.call('HINCRBY', K.limits, '@version', 1)
  end
end
for _, entry in ipairs(REST) do
  local terms = redis.call('HGET', K.limits, string.sub(entry.name, #'budget:' + 1))
  if terms and redis.call('EXISTS', entry.key) == 0 then
    redis.call('HSET', entry.key, unpack(budget.fields(budget.open({}, cjson.decode(terms).limits, now))))
  end
end
return tonumber(redis.call('HGET', K.limits, '@version') or 0)
