#!lua flags=no-writes
-- What a pool holds, all at one moment: work moves while it is counted one by one.
--
-- KEYS  ingest ingest:batch gate:interactive gate:standard gate:batch premium edge backlog:meta responses dead closed
-- Reply {flat {stream, entries, ..., `backlog`, how many wait}, entries ever added to ingest lanes, to responses, to dead,
--       whether the pool is closed (0|1)}
-- Entries stay in their stream until they are settled, so these counts include what is in hand.

local LANES = {'ingest', 'ingest:batch', 'gate:interactive', 'gate:standard', 'gate:batch', 'premium', 'edge'}

local function added(stream)
  local about = redis.pcall('XINFO', 'STREAM', stream) -- an error where there is none
  for i = 1, #about, 2 do
    if about[i] == 'entries-added' then return about[i + 1] end
  end
  return 0
end

local held = {}
for _, lane in ipairs(LANES) do
  held[#held + 1] = lane
  held[#held + 1] = redis.call('XLEN', K[lane])
end
held[#held + 1] = 'backlog'
held[#held + 1] = redis.call('HLEN', K['backlog:meta'])
return {held, added(K.ingest) + added(K['ingest:batch']), added(K.responses), added(K.dead), redis.call('EXISTS', K.closed)}
