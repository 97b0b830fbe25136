-- The backlog: one sorted set a class for what may go now, one by due time for what may go later.
-- Declares backlog:interactive, :standard, :batch, :simple, :due, :deadlines, :meta, :bodies, tenants, deferred.
--
-- score   see pipeline/priority.py: linear ageing without re-scoring, so nothing starves. Lower goes first.
-- meta    "rank simple prompt output attempt replay score deadline_ms tenant"
local CLASSES = {[0] = 'interactive', [1] = 'standard', [2] = 'batch'}
local backlog = {}

function backlog.index(rank) return K['backlog:' .. CLASSES[rank]] end

-- Anything waiting at all, due or not.
function backlog.any() return redis.call('EXISTS', K['backlog:meta']) == 1 end

function backlog.count() return redis.call('HLEN', K['backlog:meta']) end

local function tenant_field(tenant, rank) return rank .. ' ' .. tenant end

-- Make a waiting request eligible: into the index of its class, counted for its tenant.
function backlog.ready(id, meta)
  local score = string.format('%.17g', meta.score)
  if redis.call('ZADD', backlog.index(meta.rank), score, id) == 0 then return end
  if meta.simple then redis.call('ZADD', K['backlog:simple'], score, id) end
  redis.call('HINCRBY', K.tenants, tenant_field(meta.tenant, meta.rank), 1)
end

-- Put a request in; `due_us` > 0 keeps it back until then. An id stands in it once: the last one put in.
function backlog.put(id, meta, body, due_us)
  local former = backlog.meta(id)
  if former then backlog.take(id, former) end
  redis.call('HSET', K['backlog:meta'], id, string.format('%d %d %d %d %d %d %.17g %.0f %s', meta.rank, meta.simple and 1 or 0,
    meta.prompt, meta.output, meta.attempt, meta.replay, meta.score, meta.deadline_ms, meta.tenant))
  redis.call('HSET', K['backlog:bodies'], id, body)
  if meta.deadline_ms > 0 then redis.call('ZADD', K['backlog:deadlines'], string.format('%.0f', meta.deadline_ms), id) end
  if due_us > 0 then
    redis.call('ZADD', K['backlog:due'], string.format('%.0f', due_us), id)
  else
    backlog.ready(id, meta)
  end
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

-- Take a request out of everything; returns its body.
function backlog.take(id, meta)
  local body = redis.call('HGET', K['backlog:bodies'], id)
  if redis.call('ZREM', backlog.index(meta.rank), id) == 1 then
    local field = tenant_field(meta.tenant, meta.rank)
    if redis.call('HINCRBY', K.tenants, field, -1) <= 0 then redis.call('HDEL', K.tenants, field) end
  end
  redis.call('ZREM', K['backlog:simple'], id)
  redis.call('ZREM', K['backlog:due'], id)
  redis.call('ZREM', K['backlog:deadlines'], id)
  redis.call('HDEL', K['backlog:meta'], id)
  redis.call('HDEL', K['backlog:bodies'], id)
  return body
end

-- Whether the tenant has eligible work of equal or higher rank waiting: newcomers queue behind their own.
function backlog.queued(tenant, rank)
  for above = 0, rank do
    if redis.call('HEXISTS', K.tenants, tenant_field(tenant, above)) == 1 then return true end
  end
  return false
end

-- How many would go before `score`, itself included.
function backlog.position(score)
  local ahead, bound = 1, '(' .. string.format('%.17g', score)
  for rank = 0, 2 do ahead = ahead + redis.call('ZCOUNT', backlog.index(rank), '-inf', bound) end
  return ahead
end

-- Tell the drain that something may have become possible. One process takes each notice.
function backlog.notice(why)
  redis.call('XADD', K.deferred, '*', 'why', why)
end
