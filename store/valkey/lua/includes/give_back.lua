-- include: made_progress, unlock, enqueue
-- Ends an attempt without an end of the run: back to its old place in the queue, or, when attempts
-- in a row made no progress, first a wait of min(30, 0.5 * 2^(k-2)) s with full jitter.
-- `operation` tells the owner's own requeue from one over its head; `lost_by` adds to the losses in
-- a row. Returns the run's new count of losses, and whether it is claimable now.
local function give_back(shard, id, now, operation, backoff, jitter, lost_by)
  local run, journal = shard .. 'run:' .. id, shard .. 'ev:' .. id
  local state = redis.call('HMGET', run, 'inc', 'len0', 'att', 'lost', 'tok', 'trimmed')
  local attempts, lost = tonumber(state[3] or 0), tonumber(state[4] or 0)
  local length = redis.call('LLEN', journal) + tonumber(state[6] or 0)
  if made_progress(journal, tonumber(state[2] or 0), length) then
    attempts, lost = 0, 0
  elseif backoff then
    attempts = attempts + 1
  end
  lost = lost + lost_by
  unlock(shard, id, state[1] or '')
  redis.call('HSET', run, 'tok', '', 'last', state[5], 'lastop', operation,
    'att', attempts, 'lost', lost, 'inc', '')
  if not backoff or attempts < 2 then
    enqueue(shard, id, now)
    return lost, true
  end
  local due = now + math.floor(jitter * math.min(30000, 500 * 2 ^ (attempts - 2)))
  redis.call('HSET', run, 'st', 'queued', 'due', due, 'ut', now)
  redis.call('ZADD', shard .. 'timers', due, id)
  return lost, false
end
