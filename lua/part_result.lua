-- The terminal result of a request: written once a life, to everybody who waits for it.
-- Needs backlog; declares responses. Arguments per result: id, replay, streamed (0|1), result as JSON, number of field
-- arguments, then the flat fields of `responses`.
local INBOX_KEPT, INBOX_TTL_S = 10000, 3600

local function read_result(at)
  local result = {
    id = ARGV[at], replay = ARGV[at + 1], streamed = ARGV[at + 2] == '1', json = ARGV[at + 3], fields = {},
  }
  local count = tonumber(ARGV[at + 4])
  for i = 1, count do result.fields[i] = ARGV[at + 4 + i] end
  return result, at + 5 + count
end

-- Write it; the caller has checked that the id isn't terminal yet, and knows who waits (`inboxes`, may be nil).
-- `carrier`, where given, is the entry that carries the id from now on.
local function write_result(result, kept, ttl_s, inboxes, carrier)
  local key = ROOT .. 'status:' .. result.id
  redis.call('XADD', K.responses, 'MAXLEN', '~', kept, '*', unpack(result.fields))
  if carrier then
    status_set(result.id, 'terminal', result.replay, 'state', 'done', 'result', result.json, 'entry', carrier)
  else
    status_set(result.id, 'terminal', result.replay, 'state', 'done', 'result', result.json)
  end
  redis.call('EXPIRE', key, ttl_s)
  -- A copy that waits (its entry was taken over from an owner who lived) may outlast the status, and its fence with it.
  local waits = backlog.meta(result.id)
  if waits and waits.replay <= tonumber(result.replay) then backlog.drop(result.id, waits) end
  if result.streamed then
    local reply = ROOT .. 'reply:' .. result.id
    redis.pcall('XADD', reply, '*', 'kind', 'done', 'id', result.id, 'result', result.json)
    redis.pcall('EXPIRE', reply, ttl_s)
  end
  for inbox in string.gmatch(inboxes or '', '%S+') do
    local stream = ROOT .. 'inbox:' .. inbox
    redis.pcall('XADD', stream, 'MAXLEN', '~', INBOX_KEPT, '*', 'kind', 'done', 'id', result.id, 'result', result.json)
    redis.pcall('EXPIRE', stream, INBOX_TTL_S) -- one on its way to another node gets no event: its client looks again
  end
end
