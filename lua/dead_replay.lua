#!lua
-- Open a numbered second life for a dead letter: its entry goes back in, its status begins anew.
--
-- KEYS  <status> <target> dead
-- ARGV  dead letter's entry id, replay number, deltas wanted (0|1), metadata, then the fields of the new entry
-- Reply the new entry id, or '' (the letter is gone, or was replayed by somebody else)
-- include carrier

if #redis.call('XRANGE', K.dead, ARGV[1], ARGV[1]) == 0 then return '' end
local fields = {}
for i = 5, #ARGV do fields[#fields + 1] = ARGV[i] end
local entry = redis.call('XADD', K.target, '*', unpack(fields))
local stage = string.find(K.target, ':gate:', 1, true) and 'gate' or 'classify'
redis.call('HDEL', K.status, 'result', 'dead')
redis.call('HSET', K.status, 'entry', carrier(K.target, entry), 'replay', ARGV[2], 'state', 'waiting', 'stage', stage, 'attempt', 1,
  'streamed', ARGV[3], 'metadata', ARGV[4])
redis.call('PERSIST', K.status)
redis.call('XDEL', K.dead, ARGV[1])
return entry
