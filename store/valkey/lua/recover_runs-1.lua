-- Requeues runs whose locks have lapsed, at the word of a person: one look only.
--
-- KEYS[1] shard prefix
-- ARGV[2] most runs to requeue (at most 200)
-- ARGV[3] jitter, 0 to 1
-- ARGV[4] operation id
-- Returns {requeued}.
-- include: now_ms, take_from_dead, recall, remember, wake_hungry
local shard, limit, jitter, operation = KEYS[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local now = now_ms()

local known = recall(shard, operation)
if known then return known end

local lapsed = redis.call('ZRANGEBYSCORE', shard .. 'running', '-inf', now, 'LIMIT', 0, limit)
local claimable = 0
for i, id in ipairs(lapsed) do
  if take_from_dead(shard, id, now, 'worker_lost', '', (jitter + i * 0.618) % 1, 1) then
    claimable = claimable + 1
  end
end
if #lapsed == 0 then return {0} end
remember(shard, operation, {#lapsed})
for _ = 1, math.min(claimable, 8) do wake_hungry(shard, now) end
return {#lapsed}
