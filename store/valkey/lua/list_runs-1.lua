-- One page of a shard's runs, newest first, filtered. Looks at `window` entries and no more, so a
-- rare match never makes it long; the caller goes on at `offset + scanned` while that is `window`.
--
-- KEYS[1] shard prefix
-- ARGV[2] offset into the run list
-- ARGV[3] window (at most 500)
-- ARGV[4] status, or empty for any
-- ARGV[5] owner, or empty for any
-- Returns {scanned, {id, row of run_info}…}.
-- include: run_info
local shard, offset, window = KEYS[1], ARGV[2], ARGV[3]
local status, owner = ARGV[4], ARGV[5]

local ids = redis.call('ZREVRANGE', shard .. 'runs', offset, offset + window - 1)
local reply = {#ids}
for i = 1, #ids do
  local row = run_info(shard, ids[i])
  if row and (status == '' or row[1] == status) and (owner == '' or row[2] == owner) then
    reply[#reply + 1] = {ids[i], row}
  end
end
return reply
