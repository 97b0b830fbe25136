#!lua flags=allow-oom
-- Give back calls that were started but never made: their charge is undone, they wait at their old place.
--
-- KEYS  limits reservations grants premium deferred backlog:interactive backlog:standard backlog:batch backlog:simple backlog:due backlog:deadlines backlog:meta backlog:bodies tenants *
-- ARGV  consumer; then the requests (part_row.lua)
-- Reply how many were given back; the others were no longer ours
-- For a worker that was kept from its call for so long that the provider might count it after the window of the
-- grant. It alone knows that nothing was sent, and says so before it lets go of the entry.
-- include clock
-- include budget
-- include entry
-- include pool
-- include limits
-- include backlog
-- include row

local consumer, rows, ids, over, again = ARGV[1], read_rows(2), {}, {}, {}
for i, row in ipairs(rows) do ids[i] = row.entry end
local ours = pending(K.premium, 'premium', ids, consumer)
for _, row in ipairs(rows) do
  if ours[row.entry] then
    local held = granted(row.id, row.attempt)
    if held then undo(held) end
    over[#over + 1] = row.entry
    if not terminal(row.id, row.replay) then again[#again + 1] = row end
  end
end
save_budgets()
backlog.put(again)
for _, row in ipairs(again) do status_set(row.id, 'state', 'deferred', 'stage', 'deferred') end
settled(K.premium, 'premium', over)
if #over > 0 then backlog.notice('given_back') end
return #over
