-- Records a workflow name with its shard count, once; a later caller adopts what is recorded, and a
-- worker with another count is refused.
--
-- KEYS[1] the name's registry
-- ARGV[2] shard count
-- ARGV[3] store id
-- ARGV[4] 1 when a worker serves the name, else 0
-- Returns {shard count, store id, 1 if served, 1 if its shards are laid}, or SHARD_COUNT.
local registry, shard_count, store_id, serving = KEYS[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('HSETNX', registry, 'shard_count', shard_count) == 1 then
  redis.call('HSET', registry, 'store_id', store_id)
end
local state = redis.call('HMGET', registry, 'shard_count', 'store_id', 'laid')
if serving == '1' then
  if state[1] ~= shard_count then return {Code.SHARD_COUNT, tonumber(state[1])} end
  redis.call('HSET', registry, 'served', 1)
end
local served = redis.call('HEXISTS', registry, 'served')
return {tonumber(state[1]), state[2], served, tonumber(state[3] or 0)}
