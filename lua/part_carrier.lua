-- Which entry carries a request: its stream as well as its id, since entries of two streams may have the same id.
local function carrier(stream, entry) return string.sub(stream, #ROOT + 1) .. ' ' .. entry end
