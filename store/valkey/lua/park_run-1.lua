-- Appends and, unless a cancel is latched or the timer is due already, gives the run up to sleep
-- or wait. Check and park are one step, so nothing that arrives in between is missed.
--
-- KEYS[1] shard prefix
-- ARGV[2] run id
-- ARGV[3] token
-- ARGV[4] due, store ms, or empty
-- ARGV[5] sequence of the first event
-- ARGV[6…] events
-- Returns {outcome, now} with outcome 0 parked, 1 cancel, 2 due; or TOKEN, LENGTH.
-- include: now_ms, append_tail, already_released, unlock
local shard, id, token, due, first = KEYS[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local run, journal = shard .. 'run:' .. id, shard .. 'ev:' .. id
local now = now_ms()

local length, flags = append_tail(run, journal, token, first, 6)
if length == Code.TOKEN and already_released(run, token, 'park') then return {0, now} end
if length < 0 then return length end
if flags % 2 == 1 then return {1, now} end
if due ~= '' and tonumber(due) <= now then return {2, now} end

unlock(shard, id, redis.call('HGET', run, 'inc'))
redis.call('HSET', run, 'tok', '', 'last', token, 'lastop', 'park', 'inc', '', 'ut', now,
  'att', 0, 'lost', 0)
if due == '' then
  redis.call('HSET', run, 'st', 'waiting')
else
  redis.call('HSET', run, 'st', 'sleeping', 'due', due)
  redis.call('ZADD', shard .. 'timers', due, id)
end
return {0, now}
