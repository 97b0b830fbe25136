#!lua flags=allow-oom
-- Write terminal results, settle their grants, and acknowledge their entries, in one step.
--
-- KEYS  limits reservations grants deferred responses backlog:meta <source> *
-- ARGV  group, results kept, status TTL (s); then per entry: entry id, attempt, tokens used (-1 = unknown), a result (part_result.lua)
-- Reply per entry 1 (this was the terminal result) or 0 (another was first; this one is dropped)
-- The first finisher wins even if its entry was taken over meanwhile: a paid answer isn't thrown away.
-- An error before a claim (no status yet) carries its id for the first time: other entries with it are repeats.
-- include clock
-- include budget
-- include entry
-- include carrier
-- include pool
-- include result

local group, kept, ttl_s = ARGV[1], ARGV[2], ARGV[3]
local replies, rows, changed = {}, {}, false

-- What becomes of the difference between reserved and used. Unknown use: the reservation stands.
local function settle(id, attempt, used)
  local held = granted(id, attempt)
  if not held then return end
  forget(id, attempt)
  if not held.deployment or used < 0 then return end
  local reserved, state = held.prompt + held.output, held.deployment.state
  if used > reserved then
    local extra = used - reserved
    budget.charge(state, {tpm = extra, tpd = extra, otpm = extra})
    changed = true
  elseif used < reserved and held.deployment.term.settlement == 'refund' then
    local unused = reserved - used
    budget.uncharge(state, {tpm = unused, tpd = unused, otpm = unused}, held.at)
    changed = true
  end
end

local at = 4
while at <= #ARGV do
  local row = {entry = ARGV[at], attempt = ARGV[at + 1], used = tonumber(ARGV[at + 2])}
  row.result, at = read_result(at + 3)
  -- Grants are of premium calls. A stranger's broken entry that names a request in flight must not touch its grant.
  if group == 'premium' then settle(row.result.id, row.attempt, row.used) end
  rows[#rows + 1] = row
end
if changed then save_budgets() end

for i, row in ipairs(rows) do
  local carried, ours_is = status_get(row.result.id, 'entry'), carrier(K.source, row.entry)
  local ours = not (group == 'classify' and carried and carried ~= ours_is)
  if ours and not terminal(row.result.id, row.result.replay) then
    write_result(row.result, kept, ttl_s)
    if group == 'classify' then status_set(row.result.id, 'entry', ours_is) end
    replies[i] = 1
  else
    replies[i] = 0
  end
  settled(K.source, group, row.entry)
end
-- A slot, and perhaps budget, has come free.
if redis.call('EXISTS', K['backlog:meta']) == 1 then redis.call('XADD', K.deferred, '*', 'why', 'finished') end
return replies
