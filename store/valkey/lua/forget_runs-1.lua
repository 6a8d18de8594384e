-- Forgets expired runs in the shard's lists, after the caller removed their index lines. One that
-- was submitted anew in between is kept and named, so that its line can be put back.
--
-- KEYS[1] shard prefix
-- ARGV[2…] run ids, at most 500
-- Returns the ids that live again.
local shard = KEYS[1]
local alive = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  if redis.call('EXISTS', shard .. 'run:' .. id) == 1 then
    alive[#alive + 1] = id
  else
    redis.call('ZREM', shard .. 'done', id)
    redis.call('ZREM', shard .. 'runs', id)
  end
end
return alive
