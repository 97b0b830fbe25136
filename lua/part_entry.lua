-- Fences and endings of entries. A script calls `pending` first, then what can fail, `settled` last:
-- so it is safe to repeat after a lost reply, and a late finisher changes nothing.

-- Which of the entries `ids` of a stream still wait in the group to be settled (for `consumer`, where one is given), as
-- a set. Where the group is gone none does: the error must not stop the whole batch, since only a reader with free hands
-- makes the group again. One look at all of them; where others stand between, one at each that wasn't seen.
local function pending(stream, group, ids, consumer)
  local found, first, last = {}, nil, nil
  for _, id in ipairs(ids) do
    local ms = string.match(id, '^%d+') or ''
    if not first or #ms < #first or #ms == #first and ms < first then first = ms end
    if not last or #ms > #last or #ms == #last and ms > last then last = ms end
  end
  if not first then return found end
  local function look(from, to, count)
    local words = {stream, group, from, to, count, consumer}
    local reply = redis.pcall('XPENDING', unpack(words))
    for _, about in ipairs(reply.err and {} or reply) do found[about[1]] = true end
    return reply
  end
  local count = 2 * #ids + 16
  if #look(first, last, count) == count then
    for _, id in ipairs(ids) do
      if not found[id] then look(id, id, 1) end
    end
  end
  return found
end

-- Whether `consumer` still owns the entry.
local function owned(stream, group, entry, consumer)
  return redis.pcall('XPENDING', stream, group, entry, entry, 1, consumer)[1] ~= nil
end

-- Acknowledge and delete entries of a stream.
local function settled(stream, group, ids)
  if #ids == 0 then return end
  redis.call('XACK', stream, group, unpack(ids))
  redis.call('XDEL', stream, unpack(ids))
end

-- One field of a request's status; nil when there is none, or when somebody put another type in its place.
local function status_get(id, field)
  local value = redis.pcall('HGET', ROOT .. 'status:' .. id, field)
  if type(value) == 'string' then return value end
  return nil
end

-- Some fields of a request's status; nil for those that aren't there.
local function status_read(id, ...)
  local values = redis.pcall('HMGET', ROOT .. 'status:' .. id, ...)
  for i = 1, select('#', ...) do values[i] = values[i] or nil end
  return unpack(values, 1, select('#', ...))
end

-- A status is a view: a foreign key in its place must not stop the request.
local function status_set(id, ...)
  redis.pcall('HSET', ROOT .. 'status:' .. id, ...)
end

-- Whether `mark`, the `terminal` of a status (nil = none), is of this life of the request or a later one.
local function ended(mark, replay) return mark ~= nil and tonumber(mark) >= tonumber(replay) end

-- Whether this life of the request has its terminal result already.
local function terminal(id, replay) return ended(status_get(id, 'terminal'), replay) end
