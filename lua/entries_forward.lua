#!lua flags=allow-oom
-- Hand entries over to the next stream: written there, acknowledged and deleted here, in one step.
--
-- KEYS  <source> *
-- ARGV  group; then per entry: entry id, request id, replay, claims (0|1), inbox ('' = none), deltas wanted (0|1), metadata,
--       key index of the target, request
-- Reply per entry `moved`, `gone` (no longer pending here, or already answered), or `repeat` (another entry
--       carries this id already; this one is dropped)
-- An entry that claims is the first to carry its id: of several with one id only one flows on. The status keeps what a
-- result says that is written elsewhere (request_cancel.lua).
-- What comes from a call holds a grant: it goes on to the gate though it is answered, and the gate forgets the grant.
-- include entry
-- include carrier

local group, replies = ARGV[1], {}

local WIDTH = 9

-- From now on this entry carries the id.
local function claim(row, inbox, known)
  local told = {'entry', row.carrier, 'stage', 'gate', 'state', 'waiting'}
  local function tell(name, value)
    told[#told + 1] = name
    told[#told + 1] = value
  end
  if row.inbox ~= '' and not inbox then tell('inbox', row.inbox) end
  if row.streamed ~= '0' then tell('streamed', row.streamed) end
  if row.metadata ~= '{}' then tell('metadata', row.metadata) end
  if row.replay ~= '0' then tell('replay', row.replay) end
  status_set(row.id, unpack(told))
  if known then redis.call('PERSIST', ROOT .. 'status:' .. row.id) end
end

local function forward(row)
  local carried, mark, inbox = status_read(row.id, 'entry', 'terminal', 'inbox')
  row.carrier = carrier(K.source, row.entry)
  if row.claims and carried and carried ~= row.carrier then return 'repeat' end
  if ended(mark, row.replay) and group ~= 'premium' then return 'gone' end
  if row.claims then claim(row, inbox, carried or mark or inbox) end
  redis.call('XADD', row.target, '*', 'request', row.request)
  return 'moved'
end

local ids, over = {}, {}
for at = 2, #ARGV, WIDTH do ids[#ids + 1] = ARGV[at] end
local waits = pending(K.source, group, ids)
for at = 2, #ARGV, WIDTH do
  local row = {entry = ARGV[at], id = ARGV[at + 1], replay = ARGV[at + 2], claims = ARGV[at + 3] == '1', inbox = ARGV[at + 4],
    streamed = ARGV[at + 5], metadata = ARGV[at + 6], target = REST[tonumber(ARGV[at + 7])].key, request = ARGV[at + 8]}
  local answer = 'gone'
  if waits[row.entry] then
    answer = forward(row)
    over[#over + 1] = row.entry
    waits[row.entry] = nil
  end
  replies[#replies + 1] = answer
end
settled(K.source, group, over)
return replies
