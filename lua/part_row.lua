-- What every script that may put a request into the backlog is told about it: ROW_WIDTH arguments a request.
-- A count that is none (negative, fractional, beyond what is kept exactly) becomes infinite: too large for any limit.
local ROW_WIDTH = 12

local function read_count(text)
  local count = tonumber(text)
  if count and count >= 0 and count < 1e14 and count == math.floor(count) then return count end
  return math.huge
end

local function read_row(at)
  return {
    entry = ARGV[at], id = ARGV[at + 1], body = ARGV[at + 2],
    attempt = tonumber(ARGV[at + 3]), replay = tonumber(ARGV[at + 4]), rank = tonumber(ARGV[at + 5]),
    simple = ARGV[at + 6] == '1', prompt = read_count(ARGV[at + 7]), output = read_count(ARGV[at + 8]),
    score = tonumber(ARGV[at + 9]), deadline_ms = math.max(0, tonumber(ARGV[at + 10])), tenant = ARGV[at + 11],
  }
end
