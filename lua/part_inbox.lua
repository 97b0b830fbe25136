-- Who waits for a request: names of inboxes in its status, apart by spaces, the oldest first.
local MOST_INBOXES = 16

-- Have `inbox` told of the result as well.
local function listen(status, inbox)
  local inboxes = redis.call('HGET', status, 'inbox') or ''
  local count = 0
  for name in string.gmatch(inboxes, '%S+') do
    if name == inbox then return end
    count = count + 1
  end
  -- Many waiters on one id are a mistake somewhere: the oldest gives way.
  if count >= MOST_INBOXES then inboxes = string.match(inboxes, '^%S+ (.*)$') end
  redis.call('HSET', status, 'inbox', inboxes == '' and inbox or inboxes .. ' ' .. inbox)
end
