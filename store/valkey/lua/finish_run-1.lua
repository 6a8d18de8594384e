-- Writes the terminal event and ends the run in one step: one terminal event, nothing after it, the
-- lock given up, every key of the run on its way out. Watchers are told. A repeat after a lost
-- reply is recognised by the token.
--
-- KEYS[1] shard prefix
-- ARGV[2] run id
-- ARGV[3] token
-- ARGV[4] terminal status
-- ARGV[5] completed ttl, ms
-- ARGV[6] sequence of the first event
-- ARGV[7…] events, the last one terminal
-- Returns OK, or TOKEN, LENGTH.
-- include: now_ms, append_tail, already_released, unlock, publish
local shard, id, token, status = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local ttl, first = ARGV[5], tonumber(ARGV[6])
local run, journal = shard .. 'run:' .. id, shard .. 'ev:' .. id

local length = append_tail(run, journal, token, first, 7)
if length == Code.TOKEN and already_released(run, token, 'finish') then return Code.OK end
if length < 0 then return length end

local now = now_ms()
local state = redis.call('HMGET', run, 'inc', 'waiters')
unlock(shard, id, state[1])
redis.call('HSET', run, 'st', status, 'tok', '', 'last', token, 'lastop', 'finish', 'inc', '',
  'ut', now)
redis.call('ZADD', shard .. 'done', now + ttl, id)
redis.call('PEXPIRE', run, ttl)
redis.call('PEXPIRE', journal, ttl)
if state[2] then
  local rest = id .. '\n'
  if #ARGV[#ARGV] <= 4096 then rest = rest .. ARGV[#ARGV] end
  for member in string.gmatch(state[2], '%S+') do publish(shard, member, 'd', rest) end
end
return Code.OK
