-- What a budget learns from outside: results of calls, the provider's headers and refusals, and workers that remember.
-- Pure, like part_budget.lua, which it needs.

-- A header says what was left when the call was counted; it is too old to act on after this.
local STALE_US = 15000000
-- Kept back from what the provider says is left: other programs on the key are spending meanwhile.
local MARGIN = 0.05
-- Beyond our own window this much is a stranger's: a burst may have left the window since the provider counted it.
local STRANGE = 0.15
local LOWEST = -0.01
-- Differences between the two accounts of the provider's bucket, as shares of the limit: from which on they say
-- something, and which contradicts what was proven.
local TELLING, CONTRARY = 0.05, 0.1
-- So many readings prove that refunds come back, when at least this share of them does without any doubt.
local SAMPLES, RETURNED = 20, 0.1
-- Worth asking for: this share of what is reserved stays unused, and this share of the limit is in use. Then ask again
-- after so many windows, sooner where the answer was a good one.
local WORTH, BUSY, ASK_SOON, ASK_AGAIN = 0.1, 0.85, 3, 30
-- Others' rate is taken between readings so far apart, in steps of this weight, while less than this share is left.
local BETWEEN_US, WEIGHT, SCARCE = 5000000, 0.3, 0.4
local NARROWER, NARROWEST = 0.7, 0.2

-- Whether unused tokens are taken back: by policy, or because the provider proved that it does.
function budget.refunding(state)
  return state.term.settlement == 'refund' or state.term.settlement == 'auto' and state.refunds
end

-- A call ended with this use; unknown (nil) = the reservation stands. Returns whether what it left was taken back.
function budget.settle(state, reserved, used, granted_at)
  if not used then return false end
  local refund = budget.refunding(state)
  for i = 1, #state.items do
    local item = state.items[i]
    local held = reserved[item.place]
    local unused = held - used[item.place]
    if item.spare and held > 0 then item.spare = item.spare + 0.05 * (unused / held - item.spare) end
    if unused < 0 then
      budget.add(item, -unused)
    elseif unused > 0 then
      if item.net then item.net = max(0, item.net - unused) end
      if refund then budget.take_back(item, unused, granted_at) end
    end
  end
  return refund
end

-- The provider answered a call that was granted then: whatever the pause was for is over.
function budget.passed(state, granted_at)
  if state.pause_until > 0 and granted_at >= state.pause_until then
    state.pause_until, state.probe_at, state.why = 0, 0, ''
  end
end

-- The provider refused a call that was granted at `granted_at`: nothing goes until `till`, then one probe.
-- `narrow`: it was for its rate, so that our numbers are too high for it. By how much only its headers could
-- tell; without them the rate is cut, once a pause, and heals slowly.
function budget.pause(state, till, granted_at, why, narrow)
  if narrow then
    state.refunds, state.samples = false, nil
    for i = 1, #state.items do state.items[i].gross = state.items[i].net end
    local blind = not state.term.feedback or state.now - state.heard_at > 60e6
    if blind and granted_at >= state.paused_at then
      state.factor, state.paused_at = max(NARROWEST, state.factor * NARROWER), state.now
    end
  end
  if till > state.pause_until then state.pause_until, state.why = till, why end
  state.probe_at = 0
end

local function named(state, name)
  for i = 1, #state.items do
    local item = state.items[i]
    if item.name == name then return item end
  end
end

-- All that was charged since then.
local function charged_since(item, at)
  local charges, sum = item.charges, 0
  for i = #charges, max(1, floor(at / item.limit.slot_us) - item.first + 1), -1 do sum = sum + charges[i] end
  return sum
end

-- From now on both accounts say what the provider said.
local function agree(item, lacks) item.gross, item.net = lacks, lacks end

-- Learn from one more reading whether unused tokens come back. Without refunds the provider's bucket lacks at least what
-- is in `gross`, but for what it may not have counted yet (`since`): what is missing of that has come back. Returns
-- `proven`, `contradicted`, or nil.
local function compare(state, item, lacks, since)
  if state.refunds then
    if lacks - item.net < CONTRARY * item.allowed then return nil end
    state.refunds, state.samples = false, nil
    -- From here on all counts: what we took back and the provider didn't is charged again.
    if lacks > item.used then budget.add(item, lacks - item.used) end
    agree(item, lacks)
    return 'contradicted'
  end
  local gap = item.gross - item.net
  -- Less than with every refund can't be: these are calls that never reached the provider.
  local never = max(0, item.net - since - lacks)
  item.gross, item.net = item.gross - never, item.net - never
  if gap < TELLING * item.allowed then return nil end
  local share = max(-1, min(1, (item.gross - since - lacks) / gap))
  local known = state.samples or {n = 0, sum = 0, squares = 0}
  local n, sum, squares = known.n + 1, known.sum + share, known.squares + share * share
  state.samples = {n = n, sum = sum, squares = squares}
  local mean = sum / n
  local error = math.sqrt(max(0, squares / n - mean * mean) / n)
  if n < SAMPLES or mean - 2 * error <= RETURNED then return nil end
  state.refunds, state.samples = true, nil
  agree(item, lacks)
  return 'proven'
end

-- Under a steady load the two accounts never differ, and nothing can be learnt. Then a little is held back for a while
-- and let go at once, within the capacity as ever: what that leaves missing tells.
local function ask(state, item)
  if state.refunds or item.spare < WORTH or item.used < BUSY * item.allowed then return end
  local promising = state.samples and state.samples.sum > 0
  local windows = state.hold_at == 0 and 1 or promising and ASK_SOON or ASK_AGAIN
  if state.now - max(state.hold_at, state.born) < windows * item.limit.window_us then return end
  state.hold_at = state.now
  if not promising then state.samples = nil end
end

-- Learn how fast others use the key: what is missing between two readings and was neither charged by us nor refilled.
local function learn_foreign(item, left, sent_at)
  if item.heard_at and sent_at - item.heard_at < BETWEEN_US then return end
  if item.heard_at then
    local ours = charged_since(item, item.heard_at) - charged_since(item, sent_at)
    local foreign = (item.left - left - ours) / (sent_at - item.heard_at) + item.allowed / item.limit.window_us
    -- A bucket that was full meanwhile lost refill that nobody took; and while much is left nobody lacks it.
    if max(left, item.left) > SCARCE * item.allowed then foreign = 0 end
    item.foreign = max(0, item.foreign + WEIGHT * (foreign - item.foreign))
  end
  item.heard_at, item.left = sent_at, left
end

-- A provider's headers to a call that cost `own` and was sent at `sent_at`: `left` of `limit`, full again in `reset_us`
-- (0 = not said). Returns what is worth an alarm: `limit_lower`, `foreign_use`, `refunds_proven`,
-- `refunds_contradicted`, or nil.
function budget.heard(state, name, left, limit, reset_us, sent_at, own)
  local item = named(state, name)
  if not item or left < 0 or limit < 1 or left > limit or state.now - sent_at > STALE_US then return nil end
  -- Headers of one name mean a minute at one provider and a day at the next; theirs says which.
  local window = limit > left and reset_us * limit / (limit - left) or 0
  local ours = window > item.limit.window_us / 2 and window < item.limit.window_us * 2
  if not ours and not (reset_us == 0 and limit <= item.limit.limit) then return nil end
  state.heard_at = state.now
  local lower = limit < min(item.limit.limit, item.told)
  item.told = limit
  -- What the provider can't have counted yet; the call that brought this has been.
  local since = max(0, charged_since(item, sent_at - item.limit.late_us) - own)
  local lacks, learnt = limit - left, nil
  -- Only of a bucket: what it lacks comes back at its refill.
  local refill_us = lacks * item.limit.window_us / limit
  if item.gross and math.abs(reset_us - refill_us) <= 0.1 * refill_us + 20000 then
    learnt = compare(state, item, lacks, since)
    ask(state, item)
  end
  -- However a provider counts, it holds no more of ours than our window does.
  local foreign = lacks > item.used + STRANGE * item.allowed
  if state.term.feedback then
    learn_foreign(item, left, sent_at)
    item.level = min(item.level, max(left - since - MARGIN * item.allowed, LOWEST * item.allowed))
  end
  return learnt and 'refunds_' .. learnt or lower and 'limit_lower' or foreign and 'foreign_use' or nil
end

-- A worker tells what it saw of a limit at `at` on `server`: all charges ever, those of the window, and the level, in
-- the life of the budget that began at `born`. In the same life on another server, charges that are missing here were
-- lost in a fail-over: they are put back where they were at the latest. In a new life nothing is known but that a debt
-- was open, which a cold start doesn't reckon with. Returns whether that changed anything.
function budget.seen(state, name, born, cum, used, level, at, server)
  local item = named(state, name)
  if not item then return false end
  if born == state.born then
    local missing, since = cum - item.base - item.back, item.cum - item.base - item.back
    if server == state.server or missing <= 0 then return false end
    item.back, item.cum = item.back + missing, item.cum + missing
    item.level = min(item.level, level + max(0, state.now - at) * item.rate - since)
    if at >= budget.oldest(item.limit, state.now) * item.limit.slot_us then
      budget.put(item, min(missing, used, max(0, item.allowed - item.used)), at)
    end
    return true
  end
  local debt = -(level + max(0, state.born - at) * item.limit.rate)
  if born > state.born or not item.limit.paced or debt <= item.debt then return false end
  item.level, item.debt = item.level - (debt - item.debt), debt
  return true
end
