-- True when the attempt that began at `since` events finished a step (or failed one for good).
-- Looks at prefixes only, newest first, at most 1,000 events in small reads.
local function made_progress(journal, since, length)
  local oldest = math.max(since - length, -1000)
  for last = -1, oldest, -16 do
    local events = redis.call('LRANGE', journal, math.max(last - 15, oldest), last)
    for i = 1, #events do
      local event = events[i]
      if string.sub(event, 1, 16) == '{"e":"step:done"'
        or string.find(event, '^{"e":"step:error","t":%d+,"final":true')
        or string.find(event, '^{"e":"step:error","final":true') then
        return true
      end
    end
  end
  return false
end
