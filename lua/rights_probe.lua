#!lua flags=no-writes
-- Which of some commands the user who runs this may not run; none of them is run.
--
-- ARGV  for each command how many words it has, then its words
-- Reply the places of those that are refused, from 1
-- No key is declared, so that it runs for whoever may run scripts at all.

local refused, place, at = {}, 0, 1
while at <= #ARGV do
  local words = {}
  for i = 1, tonumber(ARGV[at]) do words[i] = ARGV[at + i] end
  place, at = place + 1, at + #words + 1
  local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
  if not (known and allowed) then refused[#refused + 1] = place end
end
return refused
