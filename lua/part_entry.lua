-- Fences and endings of an entry. A script calls `pending` first, then what can fail, `settled` last:
-- so it is safe to repeat after a lost reply, and a late finisher changes nothing.

-- Whether the entry still waits in its group to be settled. Where the group is gone nothing does: the error
-- must not stop the whole batch, since only a reader with free hands makes the group again.
local function pending(stream, group, entry)
  return redis.pcall('XPENDING', stream, group, entry, entry, 1)[1] ~= nil
end

-- Whether `consumer` still owns the entry.
local function owned(stream, group, entry, consumer)
  return redis.pcall('XPENDING', stream, group, entry, entry, 1, consumer)[1] ~= nil
end

local function settled(stream, group, entry)
  redis.call('XACK', stream, group, entry)
  redis.call('XDEL', stream, entry)
end

-- One field of a request's status; nil when there is none, or when somebody put another type in its place.
local function status_get(id, field)
  local value = redis.pcall('HGET', ROOT .. 'status:' .. id, field)
  if type(value) == 'string' then return value end
  return nil
end

-- A status is a view: a foreign key in its place must not stop the request.
local function status_set(id, ...)
  redis.pcall('HSET', ROOT .. 'status:' .. id, ...)
end

-- Whether this life of the request has its terminal result already.
local function terminal(id, replay)
  local mark = status_get(id, 'terminal')
  return mark ~= nil and tonumber(mark) >= tonumber(replay)
end
