#!lua flags=allow-oom
-- Charge the budgets for calls that programs make themselves (tokenweir/limiter.py), and end those that are over.
--
-- KEYS  limits reservations grants deferred backlog:meta <limiter> *
-- ARGV  number of this question, greater than that of the one before; what the ids of its calls begin with; calls that
--       are over, and calls to charge, each as one text of numbers:
--       call, place of its deployment, charged at (us), tokens reserved in prompt and in output, how it ended, two more.
--       It ended: 0 = use unknown, the reservation stands; 1 = used so many tokens in prompt and output; 2 = it was never
--       made; 3 = the provider refused it for its rate, come back in so many us; 4 = it failed, which says nothing of the
--       provider's limits
--       call, rank, tokens in prompt and in output; the place in the order decides
-- Reply text of numbers: for each deployment, in the order of KEYS, the us from a grant to the start of its call, and the
--       time of these grants (us); then for each call to charge the place of the deployment that was charged, 0 = larger
--       than any allows, or -us until it may fit: after such a one none is looked at, so that small calls can't starve
--       a large one. Then, behind `|`, per deployment `server:born`, and behind another one `at limit cum used level ...`:
--       what the program tells (budgets_report.lua) should another server, or an emptied one, answer the next time
-- Once  the last question of each limiter is kept with its answer: asked again after a lost reply, it changes nothing. A
--       copy that comes later still is refused. So no record of a grant is needed, but where calls in flight are limited:
--       there a program that dies must lose its places
-- Cost  O(calls * limits); budgets are read and written once
-- include clock
-- include budget
-- include feedback
-- include pool
-- include limits

-- By how many windows of age a class gives way: pipeline/priority.py.
local GIVES_WAY = {[0] = 0, [1] = 1, [2] = 10}
-- When the head of the backlog goes that a deployment is kept for, nobody knows; look again after this.
local KEPT_US = 100000
-- A question that has been on its way for longer was lost.
local ANSWER_KEPT_S = 3600

local question, prefix, over, wanted = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local window_ms = deployments[1].term.allowed.window_s * 1000
local limited = false -- calls in flight are
for _, deployment in ipairs(deployments) do limited = limited or deployment.term.max_in_flight > 0 end

local function end_call(id, deployment, at, prompt, output, how, a, b)
  local state, held = deployment.state, limited and granted(id, 1)
  state.changed = true
  if held then forget(held) end
  -- What was charged in a life that is over is charged no more.
  if how == '2' then
    if at >= state.born then budget.uncharge(state, budget.cost(prompt, output), at) end
  elseif how == '3' then
    budget.pause(state, now + a, at, 'limiter', true)
  else
    local used = how == '1' and at >= state.born and budget.cost(a, b) or nil
    budget.settle(state, budget.cost(prompt, output), used, at)
    if how ~= '4' then budget.passed(state, at) end
  end
end

local function charge(id, deployment, prompt, output)
  local state = deployment.state
  if limited then
    grant(deployment, id, 1, prompt, output, budget.cost(prompt, output))
  else
    budget.charge(state, budget.cost(prompt, output))
    -- Who could die without a record isn't counted.
    state.in_flight, state.changed = state.in_flight - 1, true
  end
end

local places, answers = {}, {}
for place, deployment in ipairs(deployments) do
  places[deployment] = place
  answers[place] = string.format('%.0f %.0f', deployment.term.start_within_us, deployment.state.now)
end

local function ask(id, rank, prompt, output)
  local cost = budget.cost(prompt, output)
  local deployment, wait = choose(cost, rank, now / 1000 + GIVES_WAY[rank] * window_ms)
  if deployment then
    charge(id, deployment, prompt, output)
    return places[deployment]
  end
  if not possible(cost) then return 0 end
  return -math.max(1, wait > 0 and wait or KEPT_US)
end

local last, said = string.match(redis.call('GET', K.limiter) or '', '^(%d+) (.*)$')
if last and tonumber(last) >= question then
  return tonumber(last) == question and said or redis.error_reply('STALE a later question was answered')
end

local freed = false
for call, place, at, prompt, output, how, a, b in
  string.gmatch(over, '(%d+) (%d+) (%d+) (%d+) (%d+) ([01234]) (%d+) (%d+)') do
  local deployment = deployments[tonumber(place)]
  if deployment then
    freed = true
    end_call(prefix .. call, deployment, tonumber(at), tonumber(prompt), tonumber(output), how, tonumber(a), tonumber(b))
  end
end
for call, rank, prompt, output in string.gmatch(wanted, '(%d+) ([012]) (%d+) (%d+)') do
  local answer = ask(prefix .. call, tonumber(rank), tonumber(prompt), tonumber(output))
  answers[#answers + 1] = string.format('%.0f', answer)
  if answer < 0 then break end
end
if limited then expire_grants() end
save_budgets()
save_grants()
local lives, figures = {}, {}
for i, deployment in ipairs(deployments) do
  local state = deployment.state
  -- All but times is short enough for `..`, which keeps 14 digits.
  local text = string.format('%d', state.now)
  for _, item in ipairs(state.items) do
    text = text .. ' ' .. item.name .. ' ' .. item.cum .. ' ' .. item.used .. ' ' .. math.floor(item.level)
  end
  lives[i], figures[i] = state.server .. ':' .. string.format('%d', state.born), text
end
said = table.concat(answers, ' ') .. '|' .. table.concat(lives, ' ') .. '|' .. table.concat(figures, ',')
redis.call('SET', K.limiter, ARGV[1] .. ' ' .. said, 'EX', ANSWER_KEPT_S)
-- The backlog may have waited for it.
if freed and redis.call('EXISTS', K['backlog:meta']) == 1 then redis.call('XADD', K.deferred, '*', 'why', 'limiter') end
return said
