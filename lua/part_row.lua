-- What every script that may put a request into the backlog is told about it: one list in MessagePack, ROW_WIDTH values a
-- request, and behind it their bodies, an argument each. Not arguments alone: each costs more to read than to decide on.
-- A count that is none (negative, fractional, beyond what is kept exactly) becomes infinite: too large for any limit.
local ROW_WIDTH = 11

local function read_count(count)
  if type(count) == 'number' and count >= 0 and count < 1e14 and count % 1 == 0 then return count end
  return huge
end

-- The requests that begin at ARGV[at].
local function read_rows(at)
  local list, rows = cmsgpack.unpack(ARGV[at]), {}
  for i = 1, #list / ROW_WIDTH do
    local from = (i - 1) * ROW_WIDTH
    rows[i] = {
      body = ARGV[at + i], entry = list[from + 1], id = list[from + 2], attempt = list[from + 3], replay = list[from + 4],
      rank = list[from + 5], simple = list[from + 6], prompt = read_count(list[from + 7]),
      output = read_count(list[from + 8]), score = list[from + 9], deadline_ms = max(0, list[from + 10]),
      tenant = list[from + 11],
    }
  end
  return rows
end
