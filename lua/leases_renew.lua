#!lua flags=allow-oom
-- Renew the leases of entries in hand.
--
-- KEYS  <source>
-- ARGV  group, consumer, entry ids
-- Reply the entry ids that are no longer ours
-- JUSTID, or the delivery count grows and healthy work is taken for poison; the owner is checked first, or
-- a renewal would steal entries back.
-- include entry

local group, consumer, lost = ARGV[1], ARGV[2], {}
for i = 3, #ARGV do
  if owned(K.source, group, ARGV[i], consumer) then
    redis.call('XCLAIM', K.source, group, consumer, 0, ARGV[i], 'JUSTID')
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
