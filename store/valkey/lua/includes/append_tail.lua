-- Appends ARGV[index…] as events first, first + 1, …, skipping those already there.
-- Returns length, flags; or a negative code when the token or the length refuses it.
local function append_tail(run, journal, token, first, index)
  local state = redis.call('HMGET', run, 'tok', 'flags', 'trimmed')
  if state[1] ~= token then return Code.TOKEN end
  local trimmed = tonumber(state[3] or 0)
  local length = redis.call('LLEN', journal) + trimmed
  if first > length + 1 then return Code.LENGTH end
  for i = index + length + 1 - first, #ARGV do
    length = redis.call('RPUSH', journal, ARGV[i]) + trimmed
  end
  return length, tonumber(state[2] or 0)
end
