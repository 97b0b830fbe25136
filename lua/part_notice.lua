-- Have the backlog looked at again, where anything waits in it: something may have become possible. One process takes
-- each notice. Declares deferred, backlog:meta.
local function look_again(why)
  if redis.call('EXISTS', K['backlog:meta']) == 1 then redis.call('XADD', K.deferred, '*', 'why', why) end
end
