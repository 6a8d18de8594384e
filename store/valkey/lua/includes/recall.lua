-- The answer that this very operation gave before, or nil; its caller repeats it after a lost
-- reply.
local function recall(shard, operation)
  local known = redis.call('GET', shard .. 'op:' .. operation)
  if not known then return nil end
  local answer = {}
  for number in string.gmatch(known, '%S+') do answer[#answer + 1] = tonumber(number) end
  return answer
end
