-- What every script that may put a request into the backlog is told about it: ROW_WIDTH arguments a request.
local ROW_WIDTH = 12

local function read_row(at)
  return {
    entry = ARGV[at], id = ARGV[at + 1], body = ARGV[at + 2],
    attempt = tonumber(ARGV[at + 3]), replay = tonumber(ARGV[at + 4]), rank = tonumber(ARGV[at + 5]),
    simple = ARGV[at + 6] == '1', prompt = tonumber(ARGV[at + 7]), output = tonumber(ARGV[at + 8]),
    score = tonumber(ARGV[at + 9]), deadline_ms = tonumber(ARGV[at + 10]), tenant = ARGV[at + 11],
  }
end
