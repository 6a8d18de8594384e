-- Hands out up to `limit` runs in FIFO order, each with a lock, a fresh token `<epoch>:<nonce>` and
-- the first page of its journal while the byte budget lasts. The same `n` again rebuilds the same
-- answer; the dead and the stale get nothing. One that got less than it asked for is hungry.
--
-- KEYS[1] shard prefix
-- ARGV[2] incarnation
-- ARGV[3] n
-- ARGV[4] nonce
-- ARGV[5] limit (at most 256)
-- ARGV[6] lock ttl, ms
-- ARGV[7] how long a hungry entry lasts, ms
-- ARGV[8] byte budget
-- ARGV[9] store id
-- Returns {now, {id, epoch, length, trimmed, flags, lost, page}…}, or EMPTIED, DEAD, STALE.
-- include: now_ms, claimed_row
local shard = KEYS[1]
local me, n, nonce, limit = ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local lock_ttl, hungry_ms, budget, store_id = ARGV[6], ARGV[7], tonumber(ARGV[8]), ARGV[9]
local now = now_ms()

if redis.call('HGET', shard .. 'meta', 'store_id') ~= store_id then return Code.EMPTIED end
local buried = redis.call('ZSCORE', shard .. 'tomb', me)
if buried and tonumber(buried) > now then return Code.DEAD end

local reply, answer = {now}, ARGV[3]
local last = redis.call('GET', shard .. 'op:' .. me)
local last_n = last and tonumber(string.match(last, '^%d+')) or 0
if n < last_n then return Code.STALE end
if n == last_n then
  for id in string.gmatch(last, '\n([^\n]+)') do
    local run = shard .. 'run:' .. id
    local state = redis.call('HMGET', run, 'ep', 'tok', 'trimmed', 'flags', 'lost')
    if state[2] == (state[1] or '') .. ':' .. nonce then
      local trimmed = tonumber(state[3] or 0)
      local length = redis.call('LLEN', shard .. 'ev:' .. id) + trimmed
      local row, bytes = claimed_row(shard, id, tonumber(state[1]), length, trimmed,
        tonumber(state[4] or 0), tonumber(state[5] or 0), budget)
      budget = budget - bytes
      reply[#reply + 1] = row
    end
  end
  return reply
end

local popped = redis.call('ZPOPMIN', shard .. 'queue', limit)
local locks, taken = {}, {}
for i = 1, #popped, 2 do
  local id = popped[i]
  local run = shard .. 'run:' .. id
  local state = redis.call('HMGET', run, 'ep', 'st', 'trimmed', 'flags', 'lost')
  if state[2] == 'queued' then
    local epoch, trimmed = tonumber(state[1] or 0) + 1, tonumber(state[3] or 0)
    local length = redis.call('LLEN', shard .. 'ev:' .. id) + trimmed
    redis.call('HSET', run, 'st', 'running', 'tok', epoch .. ':' .. nonce, 'ep', epoch, 'inc', me,
      'len0', length, 'ut', now)
    local row, bytes = claimed_row(shard, id, epoch, length, trimmed,
      tonumber(state[4] or 0), tonumber(state[5] or 0), budget)
    budget = budget - bytes
    reply[#reply + 1] = row
    taken[#taken + 1] = id
    locks[#locks + 1] = now + lock_ttl
    locks[#locks + 1] = id
    answer = answer .. '\n' .. id
  end
end
if taken[1] then
  redis.call('ZADD', shard .. 'running', unpack(locks))
  redis.call('SADD', shard .. 'held:' .. me, unpack(taken))
end
redis.call('SET', shard .. 'op:' .. me, answer, 'PX', 600000)
if #taken < limit then
  local stale = redis.call('ZRANGEBYSCORE', shard .. 'hungry', '-inf', now, 'LIMIT', 0, 16)
  if stale[1] then redis.call('ZREM', shard .. 'hungry', unpack(stale)) end
  redis.call('ZADD', shard .. 'hungry', now + hungry_ms, me)
else
  redis.call('ZREM', shard .. 'hungry', me)
end
return reply
