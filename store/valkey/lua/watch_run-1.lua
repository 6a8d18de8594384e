-- Registers a member for the run's `done` hint and tells how the run stands, in one step, so that
-- an end in between can't be missed. Keeps the 32 newest watchers; polling is the floor.
--
-- KEYS[1] shard prefix
-- ARGV[2] run id
-- ARGV[3] member
-- Returns {status, terminal event or false}, or NOT_FOUND.
local shard, id, member = KEYS[1], ARGV[2], ARGV[3]
local run = shard .. 'run:' .. id

local state = redis.call('HMGET', run, 'st', 'waiters')
if not state[1] then return Code.NOT_FOUND end
if redis.call('ZSCORE', shard .. 'done', id) then
  return {state[1], redis.call('LINDEX', shard .. 'ev:' .. id, -1)}
end
local waiters, count = {member}, 1
for other in string.gmatch(state[2] or '', '%S+') do
  if other ~= member and count < 32 then
    count = count + 1
    waiters[count] = other
  end
end
redis.call('HSET', run, 'waiters', table.concat(waiters, ' '))
return {state[1], false}
