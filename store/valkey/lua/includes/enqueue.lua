-- Makes the run claimable at its FIFO score, which is drawn once and then kept.
local function enqueue(shard, id, now)
  local run = shard .. 'run:' .. id
  local score = redis.call('HGET', run, 'sc')
  if not score then
    score = redis.call('INCR', shard .. 'seq')
    redis.call('HSET', run, 'sc', score)
  end
  redis.call('HSET', run, 'st', 'queued', 'ut', now)
  redis.call('HDEL', run, 'due')
  redis.call('ZADD', shard .. 'queue', score, id)
end
