-- The backlog: one sorted set a class for what may go now, one by due time for what may go later.
-- Declares backlog:interactive, :standard, :batch, :simple, :due, :deadlines, :meta, :bodies, tenants, deferred.
--
-- score   see pipeline/priority.py: linear ageing without re-scoring, so nothing starves. Lower goes first.
-- meta    "rank simple prompt output attempt replay score deadline_ms tenant"
local CLASSES = {[0] = 'interactive', [1] = 'standard', [2] = 'batch'}
local backlog = {}

function backlog.index(rank) return K['backlog:' .. CLASSES[rank]] end

function backlog.count() return redis.call('HLEN', K['backlog:meta']) end

local function tenant_field(tenant, rank) return rank .. ' ' .. tenant end

-- Make a waiting request eligible: into the index of its class, counted for its tenant.
function backlog.ready(id, meta)
  local score = string.format('%.17g', meta.score)
  if redis.call('ZADD', backlog.index(meta.rank), score, id) == 0 then return end
  if meta.simple then redis.call('ZADD', K['backlog:simple'], score, id) end
  redis.call('HINCRBY', K.tenants, tenant_field(meta.tenant, meta.rank), 1)
end

-- Put requests in; a row's `due` > 0 (us) keeps it back until then. An id stands in it once: the last one put in.
-- Noughts make a meta longer than 64 bytes: then Redis keeps them as a table from the first one on, where it would search a
-- list of up to 512 from end to end at every look.
function backlog.put(rows)
  if #rows == 0 then return end
  local ids, metas, last = {}, {}, {}
  local bodies, late, due, indexes, simple, tenants = {}, {}, {}, {}, {}, {}
  local function add(list, first, second)
    local count = #list
    list[count + 1], list[count + 2] = first, second
  end
  for i, row in ipairs(rows) do ids[i], last[row.id] = row.id, row end
  for i, known in ipairs(redis.call('HMGET', K['backlog:meta'], unpack(ids))) do
    if known then backlog.drop(ids[i], backlog.meta(ids[i])) end
  end
  for _, row in ipairs(rows) do
    if last[row.id] == row then
      local score = string.format('%.17g', row.score)
      add(metas, row.id, string.format('%d %d %012d %012d %d %d %s %016.0f %s', row.rank, row.simple and 1 or 0, row.prompt,
        row.output, row.attempt, row.replay, score, row.deadline_ms, row.tenant))
      add(bodies, row.id, row.body)
      if row.deadline_ms > 0 then add(late, string.format('%.0f', row.deadline_ms), row.id) end
      if row.due and row.due > 0 then
        add(due, string.format('%.0f', row.due), row.id)
      else
        local index, tenant = backlog.index(row.rank), tenant_field(row.tenant, row.rank)
        indexes[index] = indexes[index] or {}
        add(indexes[index], score, row.id)
        if row.simple then add(simple, score, row.id) end
        tenants[tenant] = (tenants[tenant] or 0) + 1
      end
    end
  end
  redis.call('HSET', K['backlog:meta'], unpack(metas))
  redis.call('HSET', K['backlog:bodies'], unpack(bodies))
  if #late > 0 then redis.call('ZADD', K['backlog:deadlines'], unpack(late)) end
  if #due > 0 then redis.call('ZADD', K['backlog:due'], unpack(due)) end
  if #simple > 0 then redis.call('ZADD', K['backlog:simple'], unpack(simple)) end
  for index, members in pairs(indexes) do redis.call('ZADD', index, unpack(members)) end
  for tenant, count in pairs(tenants) do redis.call('HINCRBY', K.tenants, tenant, count) end
end

function backlog.meta(id)
  local text = redis.call('HGET', K['backlog:meta'], id)
  if not text then return nil end
  local rank, simple, prompt, output, attempt, replay, score, deadline, tenant =
    string.match(text, '^(%d) (%d) (%d+) (%d+) (%d+) (%d+) (%S+) (%d+) (.*)$')
  return {
    rank = tonumber(rank), simple = simple == '1', prompt = tonumber(prompt), output = tonumber(output),
    attempt = tonumber(attempt), replay = tonumber(replay), score = tonumber(score),
    deadline_ms = tonumber(deadline), tenant = tenant,
  }
end

-- Whether it is the first of its class.
function backlog.first(id, meta) return redis.call('ZRANGE', backlog.index(meta.rank), 0, 0)[1] == id end

-- Take a request out of everything that `put` and `ready` have put it into.
function backlog.drop(id, meta)
  if redis.call('ZREM', backlog.index(meta.rank), id) == 1 then
    local field = tenant_field(meta.tenant, meta.rank)
    if redis.call('HINCRBY', K.tenants, field, -1) <= 0 then redis.call('HDEL', K.tenants, field) end
    if meta.simple then redis.call('ZREM', K['backlog:simple'], id) end
  else
    redis.call('ZREM', K['backlog:due'], id)
  end
  if meta.deadline_ms > 0 then redis.call('ZREM', K['backlog:deadlines'], id) end
  redis.call('HDEL', K['backlog:meta'], id)
  redis.call('HDEL', K['backlog:bodies'], id)
end

-- The same; returns its body.
function backlog.take(id, meta)
  local body = redis.call('HGET', K['backlog:bodies'], id)
  backlog.drop(id, meta)
  return body
end

-- The highest rank of which each tenant of `rows` has eligible work waiting: newcomers queue behind their own.
function backlog.queued(rows)
  local fields, places, found = {}, {}, {}
  for _, row in ipairs(rows) do
    local tenant, count = row.tenant, #fields
    if not places[tenant] then
      places[tenant] = count + 1
      fields[count + 1], fields[count + 2], fields[count + 3] = '0 ' .. tenant, '1 ' .. tenant, '2 ' .. tenant
    end
  end
  if #fields == 0 then return found end
  local counts = redis.call('HMGET', K.tenants, unpack(fields))
  for tenant, place in pairs(places) do
    for rank = 2, 0, -1 do
      if counts[place + rank] then found[tenant] = rank end
    end
  end
  return found
end

-- Tell the drain that something may have become possible. One process takes each notice.
function backlog.notice(why)
  redis.call('XADD', K.deferred, '*', 'why', why)
end
