#!lua flags=no-writes
-- Whether this server runs scripts like ours (7.0 and later do), and what time it has.
--
-- KEYS  limits
-- Reply {seconds, microseconds}

return redis.call('TIME')
