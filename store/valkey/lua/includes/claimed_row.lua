-- include: read_page
-- What the claimer gets to know of one run, with its journal's first page if that fits `budget`.
-- Returns the row and the bytes of its page.
local function claimed_row(shard, id, epoch, length, trimmed, flags, lost, budget)
  local page, bytes = {}, 0
  if budget > 0 then page, bytes = read_page(shard .. 'ev:' .. id, 0, 128, budget, 0) end
  return {id, epoch, length, trimmed, flags, lost, page}, bytes
end
