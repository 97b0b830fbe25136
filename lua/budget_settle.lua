#!lua flags=allow-oom
-- End calls that programs made themselves: settle, give back, pause.
--
-- KEYS  limits reservations grants deferred backlog:meta *
-- ARGV  what the ids begin with; endings (part_ending.lua), one after the other in one text
-- Reply 1
-- include clock
-- include budget
-- include feedback
-- include pool
-- include ending

local freed = end_calls(ARGV[1], ARGV[2])
expire_grants()
save_budgets()
tell_backlog(freed)
return 1
