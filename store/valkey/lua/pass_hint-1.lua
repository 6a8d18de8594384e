-- Tells the next hungry member that there is work, on behalf of one that was told and has no room.
-- Changes no run: a repeat, or a hint that gets lost, costs time only.
--
-- KEYS[1] shard prefix
-- Returns the number of claimable runs.
-- include: now_ms, publish, wake_hungry
local shard = KEYS[1]

local claimable = redis.call('ZCARD', shard .. 'queue')
if claimable > 0 then wake_hungry(shard, now_ms()) end
return claimable
