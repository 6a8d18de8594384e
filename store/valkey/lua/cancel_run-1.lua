-- Latches cancel: the owner is told to look at its flags, a run without owner becomes claimable at
-- its old place. The same operation id again gives the same answer.
--
-- KEYS[1] shard prefix
-- ARGV[2] run id
-- ARGV[3] operation id
-- Returns the status that the run had, or NOT_FOUND, FINISHED.
-- include: now_ms, enqueue, publish, wake_hungry
local shard, id, operation = KEYS[1], ARGV[2], ARGV[3]
local run = shard .. 'run:' .. id

local state = redis.call('HMGET', run, 'st', 'tok', 'inc', 'flags', 'cop', 'cst')
local status = state[1]
if not status then return Code.NOT_FOUND end
if state[5] == operation then return state[6] end
if redis.call('ZSCORE', shard .. 'done', id) then return Code.FINISHED end

local flags = tonumber(state[4] or 0)
if flags % 2 == 0 then flags = flags + 1 end
redis.call('HSET', run, 'flags', flags, 'cop', operation, 'cst', status)
if state[2] ~= '' then
  publish(shard, state[3], 'c', id)
  return status
end
local now = now_ms()
redis.call('ZREM', shard .. 'timers', id)
enqueue(shard, id, now)
wake_hungry(shard, now)
return status
