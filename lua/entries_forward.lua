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

-- Whether this entry is the one that carries the id.
local function claim(id, entry, inbox)
  local carried, entry = status_get(id, 'entry'), carrier(K.source, entry)
  if carried and carried ~= entry then return false end
  status_set(id, 'entry', entry, 'stage', 'gate', 'state', 'waiting')
  redis.call('PERSIST', ROOT .. 'status:' .. id)
  local waiting = status_get(id, 'inbox')
  if inbox ~= '' and not waiting then status_set(id, 'inbox', inbox) end
  return true
end

for at = 2, #ARGV, 7 do
  local entry, id, replay, claims, inbox = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3] == '1', ARGV[at + 4]
  local target = REST[tonumber(ARGV[at + 5])].key
  local answer = 'moved'
  if not pending(K.source, group, entry) then
    answer = 'gone'
  elseif claims and not claim(id, entry, inbox) then
    answer = 'repeat'
    settled(K.source, group, entry)
  elseif terminal(id, replay) then
    answer = 'gone'
    settled(K.source, group, entry)
  else
    redis.call('XADD', target, '*', 'request', ARGV[at + 6])
    settled(K.source, group, entry)
  end
  replies[#replies + 1] = answer
end
return replies
