-- Drops the oldest events of a journal that has outgrown the store's cap, and counts them, so that
-- a later claim can say what is missing. Only for the owner.
--
-- KEYS[1] the run's hash
-- KEYS[2] the run's journal
-- ARGV[2] token
-- ARGV[3] events to keep
-- Returns how many are trimmed in all, or TOKEN.
local run, journal = KEYS[1], KEYS[2]
local token, keep = ARGV[2], tonumber(ARGV[3])

local state = redis.call('HMGET', run, 'tok', 'trimmed')
if state[1] ~= token then return Code.TOKEN end
local surplus = math.min(redis.call('LLEN', journal) - keep, 1000)
if surplus <= 0 then return tonumber(state[2] or 0) end
redis.call('LTRIM', journal, surplus, -1)
return redis.call('HINCRBY', run, 'trimmed', surplus)
