-- Fences and endings of entries. A script calls `pending` first, then what can fail, `settled` last:
-- so it is safe to repeat after a lost reply, and a late finisher changes nothing.

-- Which of the entries `ids` of a stream still wait in the group to be settled (for `consumer`, where one is given), as
-- a set. Where the group is gone none does: the error must not stop the whole batch, since only a reader with free hands
-- makes the group again. One look at all of them; where others stand between, one at each that wasn't seen.
local function pending(stream, group, ids, consumer)
  local found, first, last = {}, nil, nil
  local shortest, longest -- digits of their milliseconds, and one more
  for i = 1, #ids do
    local id = ids[i]
    local digits = string.find(id, '-', 1, true) or #id + 1
    if not first or digits < shortest or digits == shortest and id < first then first, shortest = id, digits end
    if not last or digits > longest or digits == longest and id > last then last, longest = id, digits end
  end
  if not first then return found end
  first, last = string.sub(first, 1, shortest - 1), string.sub(last, 1, longest - 1)
  local function look(from, to, count)
    local words = {stream, group, from, to, count, consumer}
    local reply = redis.pcall('XPENDING', unpack(words))
    for i = 1, #reply do found[reply[i][1]] = true end
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

-- A status that can't be read isn't one that isn't there: a second result might be written. Only a key of another type
-- counts for none. In a Cluster whose slot is moving this ends the script; what it was told to touch, Redis has looked
-- for before it ran, so that it has written nothing yet.
local function readable(reply)
  if type(reply) == 'table' and reply.err and not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply.err) end
  return reply
end

-- One field of a request's status; nil when there is none, or when somebody put another type in its place.
local function status_get(id, field)
  local value = readable(redis.pcall('HGET', ROOT .. 'status:' .. id, field))
  if type(value) == 'string' then return value end
  return nil
end

-- Some fields of a request's status; nil for those that aren't there.
local function status_read(id, ...)
  local values = readable(redis.pcall('HMGET', ROOT .. 'status:' .. id, ...))
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
