-- Makes due runs claimable, earliest first: sleepers, delayed submits, backed-off requeues. Each is
-- fired once; one hungry member is woken for each, up to eight.
--
-- KEYS[1] shard prefix
-- ARGV[2] limit (at most 500)
-- ARGV[3] operation id
-- Returns {now, count, next due or -1}.
-- include: now_ms, enqueue, recall, remember, wake_hungry
local shard, limit, operation = KEYS[1], ARGV[2], ARGV[3]
local now = now_ms()

local known = recall(shard, operation)
if known then return known end

local due = redis.call('ZRANGEBYSCORE', shard .. 'timers', '-inf', now, 'LIMIT', 0, limit)
local count = 0
for i = 1, #due do
  redis.call('ZREM', shard .. 'timers', due[i])
  if redis.call('EXISTS', shard .. 'run:' .. due[i]) == 1 then
    enqueue(shard, due[i], now)
    count = count + 1
  end
end
local next_due = redis.call('ZRANGE', shard .. 'timers', 0, 0, 'WITHSCORES')
local answer = {now, count, tonumber(next_due[2] or -1)}
if count == 0 then return answer end
remember(shard, operation, answer)
for _ = 1, math.min(count, 8) do wake_hungry(shard, now) end
return answer
