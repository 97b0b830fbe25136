#!lua flags=allow-oom
-- Charge the budgets for calls that programs make themselves (tokenweir/limiter.py), and end those that are over.
--
-- KEYS  limits reservations grants deferred backlog:meta <limiter> *
-- ARGV  number of this question, greater than that of the one before; what the ids of its calls begin with; calls that
--       are over, and calls to charge, each as one list of integers in MessagePack, a call after the other:
--       call, place of its deployment, charged at (us), tokens reserved in prompt and in output, how it ended, two more.
--       It ended: 0 = use unknown, the reservation stands; 1 = used so many tokens in prompt and output; 2 = it was never
--       made; 3 = the provider refused it for its rate, come back in so many us; 4 = it failed, which says nothing of the
--       provider's limits
--       call, rank, tokens in prompt and in output; the place in the order decides
-- Reply in MessagePack, five lists. By deployment, in the order of KEYS: the us from a grant to the start of its call; the
--       time of these grants (us). By call to charge: the place of the deployment that was charged, 0 = larger than any
--       allows, or -us until it may fit: after such a one none is looked at, so that small calls can't starve a large one.
--       By deployment again {server, born}, and {at, by limit {name, cum, used, level}}: what the program tells
--       (budgets_report.lua) should another server, or an emptied one, answer the next time
-- Once  the last question of each limiter is kept with its answer: asked again after a lost reply, it changes nothing. A
--       copy that comes later still is refused. So no record of a grant is needed, but where calls in flight are limited:
--       there a program that dies must lose its places
-- Cost  O(calls * limits); budgets are read and written once
-- include clock
-- include budget
-- include feedback
-- include pool
-- include limits
-- include notice

-- By how many windows of age a class gives way: pipeline/priority.py.
local GIVES_WAY = {[0] = 0, [1] = 1, [2] = 10}
-- When the head of the backlog goes that a deployment is kept for, nobody knows; look again after this.
local KEPT_US = 100000
-- A question that has been on its way for longer was lost.
local ANSWER_KEPT_S = 3600

-- Lists and not texts: reading numbers out of a text costs more than deciding on them.
local question, prefix = tonumber(ARGV[1]), ARGV[2]
local over, wanted = cmsgpack.unpack(ARGV[3]), cmsgpack.unpack(ARGV[4])
local window_ms = deployments[1].term.allowed.window_s * 1000
local limited = false -- calls in flight are
for _, deployment in ipairs(deployments) do limited = limited or deployment.term.max_in_flight > 0 end

local function id_of(call) return prefix .. string.format('%d', call) end

local function end_call(call, deployment, at, prompt, output, how, a, b)
  local state, held = deployment.state, limited and granted(id_of(call), 1)
  state.changed = true
  if held then forget(held) end
  -- What was charged in a life that is over is charged no more.
  if how == 2 then
    if at >= state.born then budget.uncharge(state, budget.cost(prompt, output), at) end
  elseif how == 3 then
    budget.pause(state, now + a, at, 'limiter', true)
  else
    if how == 1 and at >= state.born then budget.settle(state, budget.cost(prompt, output), budget.cost(a, b), at) end
    if how ~= 4 then budget.passed(state, at) end
  end
end

local function charge(call, deployment, prompt, output, cost)
  local state = deployment.state
  if limited then
    grant(deployment, id_of(call), 1, prompt, output, cost)
  else
    budget.charge(state, cost)
    -- Who could die without a record isn't counted.
    state.in_flight, state.changed = state.in_flight - 1, true
  end
end

-- The answer to one call.
local function ask(call, rank, prompt, output)
  local cost = budget.cost(prompt, output)
  local deployment, wait = choose(cost, rank, now / 1000 + GIVES_WAY[rank] * window_ms)
  if deployment then
    charge(call, deployment, prompt, output, cost)
    return deployment.place
  end
  if not possible(cost) then return 0 end
  return -math.max(1, wait > 0 and math.ceil(wait) or KEPT_US)
end

local last, said = string.match(redis.call('GET', K.limiter) or '', '^(%d+) (.*)$')
if last and tonumber(last) >= question then
  return tonumber(last) == question and said or redis.error_reply('STALE a later question was answered')
end

local start_within, times, answers, lives, figures = {}, {}, {}, {}, {}
for place, deployment in ipairs(deployments) do
  deployment.place, start_within[place], times[place] = place, deployment.term.start_within_us, deployment.state.now
end
for i = 1, #over, 8 do
  local deployment = deployments[over[i + 1]]
  if deployment then
    end_call(over[i], deployment, over[i + 2], over[i + 3], over[i + 4], over[i + 5], over[i + 6], over[i + 7])
  end
end
for i = 1, #wanted, 4 do
  local answer = ask(wanted[i], wanted[i + 1], wanted[i + 2], wanted[i + 3])
  answers[#answers + 1] = answer
  if answer < 0 then break end
end
if limited then expire_grants() end
save_budgets()
save_grants()
for place, deployment in ipairs(deployments) do
  local state, known = deployment.state, {}
  for i, item in ipairs(state.items) do known[i] = {item.name, item.cum, item.used, math.floor(item.level)} end
  lives[place], figures[place] = {state.server, state.born}, {state.now, known}
end
said = cmsgpack.pack({start_within, times, answers, lives, figures})
redis.call('SET', K.limiter, ARGV[1] .. ' ' .. said, 'EX', ANSWER_KEPT_S)
-- The backlog may have waited for it.
if #over > 0 then look_again('limiter') end
return said
