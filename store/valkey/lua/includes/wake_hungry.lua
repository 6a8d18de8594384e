-- include: publish
-- Pops the member that has been hungry longest and tells it that there is work; expired entries
-- are dropped on the way, a few at most. Nobody hungry: one cheap call.
local function wake_hungry(shard, now)
  for _ = 1, 16 do
    local member = redis.call('ZPOPMIN', shard .. 'hungry')
    if not member[1] then return end
    if tonumber(member[2]) > now then return publish(shard, member[1], 'w') end
  end
end
