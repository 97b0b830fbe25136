#!lua
-- The result of a request, or, while there is none, its delivery to an inbox as soon as there is.
--
-- KEYS  <status>
-- ARGV  inbox, time to live (s) of a status that nobody has made yet
-- Reply the result as JSON, or '' (it will come to the inbox)

local result = redis.call('HGET', K.status, 'result')
if result then return result end
local known = redis.call('EXISTS', K.status) == 1
local inboxes = redis.call('HGET', K.status, 'inbox') or ''
local listed, count = false, 0
for inbox in string.gmatch(inboxes, '%S+') do
  listed, count = listed or inbox == ARGV[1], count + 1
end
if not listed then
  -- Many waiters on one id are a mistake somewhere: the oldest gives way.
  if count >= 16 then inboxes = string.match(inboxes, '^%S+ (.*)$') end
  redis.call('HSET', K.status, 'inbox', inboxes == '' and ARGV[1] or inboxes .. ' ' .. ARGV[1])
end
-- A raw entry that is still on its way has no status yet; one that never comes must not stay for ever.
if not known then redis.call('EXPIRE', K.status, ARGV[2]) end
return ''
