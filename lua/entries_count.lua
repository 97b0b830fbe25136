#!lua flags=allow-oom
-- Count a delivery of an entry in hand as it begins.
--
-- KEYS  <source>
-- ARGV  group, consumer, entry id, deliveries with this one
-- Reply 1, or 0 when the entry is no longer this consumer's
-- Told again, for want of a reply, it counts no more.
-- include entry

if not owned(K.source, ARGV[1], ARGV[3], ARGV[2]) then return 0 end
redis.call('XCLAIM', K.source, ARGV[1], ARGV[2], 0, ARGV[3], 'RETRYCOUNT', ARGV[4], 'JUSTID')
return 1
