#!lua
-- Charge the budgets for calls that programs make themselves, and end those that are over, in one step.
--
-- KEYS  limits reservations grants deferred backlog:meta *
-- ARGV  what the ids begin with; endings (part_ending.lua) in one text; questions in one text, four numbers each:
--       call, rank, tokens in prompt and in output
-- Reply per deployment the us from a grant to the start of its call; then per question the place of the deployment
--       that was charged, 0 = larger than any allows, or -us until it may fit; after such a one none is looked at, so
--       that small calls can't starve a large one
-- Asking again with an id that has its grant gives the same grant.
-- include clock
-- include budget
-- include feedback
-- include pool
-- include limits
-- include ending

-- By how many windows of age a class gives way: pipeline/priority.py.
local GIVES_WAY = {[0] = 0, [1] = 1, [2] = 10}
-- When the head of the backlog goes that a deployment is kept for, nobody knows; look again after this.
local KEPT_US = 100000

local reply, place = {}, {}
for i, deployment in ipairs(deployments) do
  reply[i], place[deployment] = deployment.term.start_within_us, i
end
local window_ms = deployments[1].term.allowed.window_s * 1000

local function ask(id, rank, prompt, output)
  local held = granted(id, 1)
  if held then return held.deployment and place[held.deployment] or 0 end
  local cost = budget.cost(prompt, output)
  local deployment, wait = choose(cost, rank, now / 1000 + GIVES_WAY[rank] * window_ms)
  if deployment then
    grant(deployment, id, 1, prompt, output)
    return place[deployment]
  end
  if not possible(cost) then return 0 end
  return -math.max(1, wait > 0 and wait or KEPT_US)
end

local freed = end_calls(ARGV[1], ARGV[2])
for call, rank, prompt, output in string.gmatch(ARGV[3], '(%d+) ([012]) (%d+) (%d+)') do
  local answer = ask(ARGV[1] .. call, tonumber(rank), tonumber(prompt), tonumber(output))
  reply[#reply + 1] = answer
  if answer < 0 then break end
end
expire_grants()
save_budgets()
tell_backlog(freed)
return reply
