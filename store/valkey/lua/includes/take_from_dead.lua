-- include: give_back
-- Requeues a run whose owner is gone and journals why; `reason` and `cause` are vetted words.
-- A loss that doesn't count doesn't wait either. Returns whether it is claimable now.
local function take_from_dead(shard, id, now, reason, cause, jitter, lost_by)
  local lost, claimable = give_back(shard, id, now, 'taken', lost_by > 0, jitter, lost_by)
  local event = string.format(
    '{"e":"run:requeued","t":%.0f,"reason":"%s","lost":%d', now, reason, lost)
  if cause ~= '' then event = event .. ',"cause":"' .. cause .. '"' end
  redis.call('RPUSH', shard .. 'ev:' .. id, event .. '}')
  return claimable
end
