-- Events from list index `start` on: at most `most` of them, as many as fit `budget` bytes, at
-- least `least`. Reads in small pieces, so that a few huge events never pile up.
-- Returns the events and the bytes they take.
local function read_page(journal, start, most, budget, least)
  local page, bytes = {}, 0
  while #page < most do
    local from = start + #page
    local piece = redis.call('LRANGE', journal, from, from + math.min(16, most - #page) - 1)
    for i = 1, #piece do
      bytes = bytes + #piece[i]
      if bytes > budget and #page >= least then return page, bytes - #piece[i] end
      page[#page + 1] = piece[i]
    end
    if #piece < 16 then break end
  end
  return page, bytes
end
