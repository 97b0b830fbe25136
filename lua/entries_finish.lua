#!lua flags=allow-oom
-- Write terminal results, settle their grants, and acknowledge their entries, in one step.
--
-- KEYS  limits reservations grants deferred responses backlog:interactive backlog:standard backlog:batch backlog:simple backlog:due backlog:deadlines backlog:meta backlog:bodies tenants <source> *
-- ARGV  group, results kept, status TTL (s); then per entry: entry id, attempt, tokens used in prompt and output (-1 = unknown),
--       pause_us (-1 = the call was answered), why, narrow (0|1), a result (part_result.lua)
-- Reply per entry three numbers: 1 (this was the terminal result) or 0 (another was first; this one is dropped), and the
--       tokens of prompt and output that were given back
-- The first finisher wins even if its entry was taken over meanwhile: a paid answer isn't thrown away.
-- An error before a claim (no status yet) carries its id for the first time: other entries with it are repeats.
-- include clock
-- include budget
-- include feedback
-- include entry
-- include carrier
-- include pool
-- include backlog
-- include result
-- include notice

local group, kept, ttl_s = ARGV[1], ARGV[2], ARGV[3]
local replies, rows, ids, members = {}, {}, {}, {}
local at = 4
while at <= #ARGV do
  local row = {entry = ARGV[at], attempt = ARGV[at + 1], prompt = tonumber(ARGV[at + 2]), output = tonumber(ARGV[at + 3]),
    pause = tonumber(ARGV[at + 4]), why = ARGV[at + 5], narrow = ARGV[at + 6] == '1', back = {0, 0}}
  row.result, at = read_result(at + 7)
  rows[#rows + 1], ids[#ids + 1], members[#members + 1] = row, row.entry, row.result.id .. '#' .. row.attempt
end

-- What becomes of the difference between reserved and used. Unknown use: the reservation stands.
local function settle(row, held)
  if not held.deployment then return end
  local state, used = held.deployment.state, row.prompt >= 0 and budget.cost(row.prompt, row.output) or nil
  if budget.settle(state, budget.cost(held.prompt, held.output), used, held.at) then
    row.back = {math.max(0, held.prompt - row.prompt), math.max(0, held.output - row.output)}
  end
  if row.pause < 0 then
    budget.passed(state, held.at)
  elseif row.pause > 0 then
    budget.pause(state, now + row.pause, held.at, row.why, row.narrow)
  end
end

-- Grants are of premium calls. A stranger's broken entry that names a request in flight must not touch its grant.
if group == 'premium' then
  local grants, over = granted_to(members), {}
  for i, row in ipairs(rows) do
    local held = grants[i]
    if held and not over[held.member] then
      settle(row, held)
      over[held.member], over[#over + 1] = true, held
    end
  end
  forget_all(over)
  save_budgets()
end

for i, row in ipairs(rows) do
  local carried, mark, inboxes = status_read(row.result.id, 'entry', 'terminal', 'inbox')
  local ours_is = carrier(K.source, row.entry)
  local ours = not (group == 'classify' and carried and carried ~= ours_is)
  if ours and not ended(mark, row.result.replay) then
    write_result(row.result, kept, ttl_s, inboxes, group == 'classify' and ours_is)
    replies[3 * i - 2] = 1
  else
    replies[3 * i - 2] = 0
  end
  replies[3 * i - 1], replies[3 * i] = row.back[1], row.back[2]
end
settled(K.source, group, ids)
-- A slot, and perhaps budget, has come free.
look_again('finished')
return replies
