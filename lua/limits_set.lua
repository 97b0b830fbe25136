#!lua flags=allow-oom
-- Put other limits in force, for all workers at once: every decision from now on counts with them.
--
-- KEYS  limits deferred backlog:meta
-- ARGV  per deployment: name, terms as JSON
-- Reply the limits' version, or 0 where a deployment has no limits in Redis: nothing was changed then
-- What was charged before counts in the new limits too, so a change never admits more than either allows.
-- include notice

for i = 1, #ARGV, 2 do
  if redis.call('HEXISTS', K.limits, ARGV[i]) == 0 then return 0 end
end
for i = 1, #ARGV, 2 do redis.call('HSET', K.limits, ARGV[i], ARGV[i + 1]) end
local version = redis.call('HINCRBY', K.limits, '@version', 1)
look_again('limits')
return version
