-- Buries a dead incarnation: it can't claim or renew for ten minutes, and all that it held goes
-- back to its place in the queue, its tokens void. Repeatable by anyone, half done or twice.
--
-- KEYS[1] shard prefix
-- ARGV[2] incarnation
-- ARGV[3] reason (a vetted word)
-- ARGV[4] cause (a vetted word, or empty)
-- ARGV[5] most runs to requeue (at most 200)
-- ARGV[6] jitter, 0 to 1
-- ARGV[7] operation id
-- ARGV[8] 'all' when each loss counts, else 'some'
-- ARGV[9…] with 'some', the run ids whose loss counts
-- Returns {requeued, 1 if some are left}.
-- include: now_ms, take_from_dead, recall, remember, wake_hungry
local shard, dead, reason, cause = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local limit, jitter, operation, all = ARGV[5], tonumber(ARGV[6]), ARGV[7], ARGV[8] == 'all'
local held, tomb = shard .. 'held:' .. dead, shard .. 'tomb'
local now = now_ms()

local known = recall(shard, operation)
if known then return known end
local counts = {}
for i = 9, #ARGV do counts[ARGV[i]] = true end
local expired = redis.call('ZRANGEBYSCORE', tomb, '-inf', now, 'LIMIT', 0, 16)
if expired[1] then redis.call('ZREM', tomb, unpack(expired)) end
redis.call('ZADD', tomb, now + 600000, dead)
redis.call('ZREM', shard .. 'hungry', dead)

local requeued, claimable = 0, 0
for i, id in ipairs(redis.call('SRANDMEMBER', held, limit)) do
  redis.call('SREM', held, id)
  if redis.call('HGET', shard .. 'run:' .. id, 'inc') == dead then
    local lost_by = (all or counts[id]) and 1 or 0
    if take_from_dead(shard, id, now, reason, cause, (jitter + i * 0.618) % 1, lost_by) then
      claimable = claimable + 1
    end
    requeued = requeued + 1
  end
end
local answer = {requeued, redis.call('EXISTS', held)}
if requeued == 0 then return answer end
remember(shard, operation, answer)
for _ = 1, math.min(claimable, 8) do wake_hungry(shard, now) end
return answer
