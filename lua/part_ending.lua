-- What became of calls that programs make themselves (tokenweir/limiter.py).
-- Needs clock, budget, feedback, pool; declares limits, reservations, grants, deferred, backlog:meta and the budgets.
--
-- ending  five numbers: call, how it ended, two more, mark. It ended: 0 = use unknown, the reservation stands;
--         1 = used so many tokens in prompt and output; 2 = it was never made; 3 = the provider refused it for its
--         rate, come back in so many us. Twice is once: what ended is known no more.
-- mark    1 = whether, or how often, it was asked for is unknown: leave a mark, so that a copy of the question that is
--         still on its way is granted nothing

-- A question that has been on its way for longer than this was lost.
local MARK_US, MARK_KEPT_S = 60000000, 3600

local function leave_mark(member)
  redis.call('HSET', K.grants, member, '- 0 0 0 1')
  redis.call('ZADD', K.reservations, string.format('%.0f', now + MARK_US), member)
  redis.call('EXPIRE', K.grants, MARK_KEPT_S)
  redis.call('EXPIRE', K.reservations, MARK_KEPT_S)
end

local function end_call(held, how, a, b)
  local state = held.deployment.state
  if how == '2' then
    undo(held)
    return
  elseif how == '3' then
    budget.pause(state, now + a, held.at, 'limiter', true)
  else
    budget.settle(state, budget.cost(held.prompt, held.output), how == '1' and budget.cost(a, b) or nil, held.at)
  end
  forget(held)
end

-- End all calls of `text`; their ids begin with `prefix`. Returns whether that may have made room.
local function end_calls(prefix, text)
  local freed = false
  for call, how, a, b, mark in string.gmatch(text, '(%d+) (%d) (%d+) (%d+) (%d)') do
    local held = granted(prefix .. call, 1)
    if held and held.deployment then
      freed = true
      end_call(held, how, tonumber(a), tonumber(b))
    end
    if mark == '1' then leave_mark(prefix .. call .. '#1') end
  end
  return freed
end

-- The backlog may have waited for it.
local function tell_backlog(freed)
  if freed and redis.call('EXISTS', K['backlog:meta']) == 1 then redis.call('XADD', K.deferred, '*', 'why', 'limiter') end
end
