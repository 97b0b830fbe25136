#!lua flags=allow-oom
-- Hand entries over to the next stream: written there, acknowledged and deleted here, in one step.
--
-- KEYS  <source> *
-- ARGV  group; then per entry: entry id, request id, replay, claims (0|1), inbox ('' = none), key index of the target, request
-- Reply per entry `moved`, `gone` (no longer pending here, or already answered), or `repeat` (another entry
--       carries this id already; this one is dropped)
-- An entry that claims is the first to carry its id: of several with one id only one flows on.
-- include entry
-- include carrier

local group, replies = ARGV[1], {}

-- Whether this entry is the one that carries the id; `carried` carries it so far.
local function claim(id, entry, inbox, carried, waiting, known)
  entry = carrier(K.source, entry)
  if carried and carried ~= entry then return false end
  if inbox ~= '' and not waiting then
    status_set(id, 'entry', entry, 'stage', 'gate', 'state', 'waiting', 'inbox', inbox)
  else
    status_set(id, 'entry', entry, 'stage', 'gate', 'state', 'waiting')
  end
  if known then redis.call('PERSIST', ROOT .. 'status:' .. id) end
  return true
end

local ids, over = {}, {}
for at = 2, #ARGV, 7 do ids[#ids + 1] = ARGV[at] end
local waits = pending(K.source, group, ids)
for at = 2, #ARGV, 7 do
  local entry, id, replay, claims, inbox = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3] == '1', ARGV[at + 4]
  local target = REST[tonumber(ARGV[at + 5])].key
  local answer = 'gone'
  if waits[entry] then
    local carried, mark, waiting = status_read(id, 'entry', 'terminal', 'inbox')
    if claims and not claim(id, entry, inbox, carried, waiting, carried or mark or waiting) then
      answer = 'repeat'
    elseif not ended(mark, replay) then
      redis.call('XADD', target, '*', 'request', ARGV[at + 6])
      answer = 'moved'
    end
    over[#over + 1] = entry
    waits[entry] = nil
  end
  replies[#replies + 1] = answer
end
settled(K.source, group, over)
return replies
