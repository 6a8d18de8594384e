-- Two looks at the locks of a shard. A lock with at most a third of its ttl left has missed a
-- renewal and becomes suspect; a suspect that has lapsed and was suspected a third of a ttl ago is
-- requeued. A renewal in between clears it, so a paused server requeues nobody alive.
--
-- KEYS[1] shard prefix
-- ARGV[2] lock ttl, ms
-- ARGV[3] most runs to requeue (at most 200)
-- ARGV[4] jitter, 0 to 1
-- ARGV[5] operation id
-- Returns {suspected, requeued, ms until the next look or -1}.
-- include: now_ms, take_from_dead, recall, remember, wake_hungry
local shard, third, limit = KEYS[1], math.floor(ARGV[2] / 3), tonumber(ARGV[3])
local jitter, operation = tonumber(ARGV[4]), ARGV[5]
local now = now_ms()

local known = recall(shard, operation)
if known then return known end

local late = redis.call('ZRANGEBYSCORE', shard .. 'running', '-inf', now + third, 'WITHSCORES',
  'LIMIT', 0, 1000)
local suspected, requeued, claimable, look_again = 0, 0, 0, nil
for i = 1, #late, 2 do
  local id, expiry = late[i], tonumber(late[i + 1])
  local since = tonumber(redis.call('ZSCORE', shard .. 'suspect', id) or now)
  local ripe = math.max(expiry, since + third)
  if since < now and ripe <= now and requeued < limit then
    if take_from_dead(shard, id, now, 'worker_lost', '', (jitter + i * 0.309) % 1, 1) then
      claimable = claimable + 1
    end
    requeued = requeued + 1
  else
    suspected = suspected + redis.call('ZADD', shard .. 'suspect', 'NX', now, id)
    look_again = math.min(look_again or ripe, ripe)
  end
end
local answer = {suspected, requeued, look_again and math.max(1, look_again - now) or -1}
if suspected + requeued == 0 then return answer end
remember(shard, operation, answer)
for _ = 1, math.min(claimable, 8) do wake_hungry(shard, now) end
return answer
