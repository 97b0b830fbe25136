#!lua flags=allow-oom
-- Put the configured limits in place, unless they were put there before: what an operator set live stays.
--
-- KEYS  limits *
-- ARGV  per deployment: name, fingerprint of the configuration, terms as JSON
-- Reply {version of the limits, names of the deployments for which other terms are in force}
-- Fields of `limits`: <deployment> = terms, <deployment>@seed = fingerprints of all configurations seen, the last one
--       last; @version = count of changes; @head = for whom a deployment is kept (backlog_drain.lua); @results = how many
--       results are kept, and how long (s), as a worker said at its start
-- A configuration is put in place once: two that are in use at the same time (a rolling update) don't take turns.
-- A budget that isn't there yet starts cold now, and not when the first request has to wait for it.
-- include clock
-- include budget

-- So many configurations are remembered.
local MOST = 20

local function remember(name, fingerprint)
  local known = {}
  for word in string.gmatch(redis.call('HGET', K.limits, name .. '@seed') or '', '%S+') do
    if word == fingerprint then return false end
    known[#known + 1] = word
  end
  known[#known + 1] = fingerprint
  redis.call('HSET', K.limits, name .. '@seed', table.concat(known, ' ', math.max(1, #known - MOST + 1)))
  return true
end

local differ = {}
for i = 1, #ARGV, 3 do
  local name, terms = ARGV[i], ARGV[i + 2]
  if remember(name, ARGV[i + 1]) or redis.call('HEXISTS', K.limits, name) == 0 then
    redis.call('HSET', K.limits, name, terms)
    redis.call('HINCRBY', K.limits, '@version', 1)
  elseif redis.call('HGET', K.limits, name) ~= terms then
    differ[#differ + 1] = name
  end
end
for _, entry in ipairs(REST) do
  local terms = redis.call('HGET', K.limits, string.sub(entry.name, #'budget:' + 1))
  if terms and redis.call('EXISTS', entry.key) == 0 then
    redis.call('SET', entry.key, cmsgpack.pack(budget.saved(budget.open(nil, cjson.decode(terms), now))))
  end
end
return {tonumber(redis.call('HGET', K.limits, '@version') or 0), differ}
