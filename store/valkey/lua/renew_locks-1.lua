-- Extends the locks of one incarnation in one shard, each only if its token is still the run's, and
-- clears their suspicion. A dead incarnation renews nothing.
--
-- KEYS[1] shard prefix
-- ARGV[2] incarnation
-- ARGV[3] lock ttl, ms
-- ARGV[4…] run id and token, alternating, at most 256 pairs
-- Returns one number for each pair: its flags, or TOKEN.
-- include: now_ms
local shard, me, lock_ttl = KEYS[1], ARGV[2], ARGV[3]
local now = now_ms()
local buried = redis.call('ZSCORE', shard .. 'tomb', me)
local dead = buried and tonumber(buried) > now

local reply = {}
for i = 4, #ARGV, 2 do
  local id = ARGV[i]
  local state = redis.call('HMGET', shard .. 'run:' .. id, 'tok', 'flags')
  if dead or state[1] ~= ARGV[i + 1] then
    reply[#reply + 1] = Code.TOKEN
  else
    redis.call('ZADD', shard .. 'running', now + lock_ttl, id)
    redis.call('ZREM', shard .. 'suspect', id)
    reply[#reply + 1] = tonumber(state[2] or 0)
  end
end
return reply
