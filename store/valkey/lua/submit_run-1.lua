-- Accepts a run: hash, journal event 1, its place in the queue (or among the timers when delayed)
-- and in the run list, and one hungry member woken. The same id and digest again changes nothing.
--
-- KEYS[1] shard prefix
-- ARGV[2] run id
-- ARGV[3] digest of name and parameters
-- ARGV[4] owner, or empty
-- ARGV[5] delay, ms
-- ARGV[6] store id
-- ARGV[7] operation id
-- ARGV[8] the packed run:init
-- Returns 1 when this operation created it, 0 when it was there with that digest; or EMPTIED,
-- EXISTS.
-- include: now_ms, already_released, enqueue, wake_hungry
local shard, id, digest, owner = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local delay, store_id, operation, init = tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8]
local run = shard .. 'run:' .. id

if redis.call('HGET', shard .. 'meta', 'store_id') ~= store_id then return Code.EMPTIED end
local known = redis.call('HGET', run, 'dg')
if known then
  if already_released(run, operation, 'submit') then return 1 end
  return known == digest and 0 or Code.EXISTS
end

local now = now_ms()
redis.call('HSET', run, 'dg', digest, 'st', 'queued', 'tok', '', 'last', operation,
  'lastop', 'submit', 'ct', now, 'ut', now)
if owner ~= '' then redis.call('HSET', run, 'own', owner) end
redis.call('RPUSH', shard .. 'ev:' .. id, init)
redis.call('ZADD', shard .. 'runs', now, id)
redis.call('ZREM', shard .. 'done', id)
if delay > 0 then
  redis.call('HSET', run, 'due', now + delay)
  redis.call('ZADD', shard .. 'timers', now + delay, id)
  return 1
end
enqueue(shard, id, now)
wake_hungry(shard, now)
return 1
