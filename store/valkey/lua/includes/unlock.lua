-- Takes the run out of the lock indexes of its shard; the caller writes the run's hash.
local function unlock(shard, id, incarnation)
  redis.call('ZREM', shard .. 'running', id)
  redis.call('ZREM', shard .. 'suspect', id)
  redis.call('SREM', shard .. 'held:' .. incarnation, id)
end
