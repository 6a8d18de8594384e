-- Drops the oldest events of a journal that has outgrown the store's cap, and counts them, so that
-- a later claim can say what is missing. Only for the owner.
--
-- KEYS[1] shard prefix
-- ARGV[2] run id
-- ARGV[3] token
-- ARGV[4] events to keep
-- Returns how many are trimmed in all, or TOKEN.
local shard, id, token, keep = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local run, journal = shard .. 'run:' .. id, shard .. 'ev:' .. id

local state = redis.call('HMGET', run, 'tok', 'trimmed')
if state[1] ~= token then return Code.TOKEN end
local surplus = math.min(redis.call('LLEN', journal) - keep, 1000)
if surplus <= 0 then return tonumber(state[2] or 0) end
redis.call('LTRIM', journal, surplus, -1)
return redis.call('HINCRBY', run, 'trimmed', surplus)
