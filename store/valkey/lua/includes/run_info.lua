-- What is known of a run without its journal, or nil. Order: status, owner, created, updated, due,
-- epoch, lost, incarnation, trimmed, length of the list.
local function run_info(shard, id)
  local row = redis.call('HMGET', shard .. 'run:' .. id,
    'st', 'own', 'ct', 'ut', 'due', 'ep', 'lost', 'inc', 'trimmed')
  if not row[1] then return nil end
  row[10] = redis.call('LLEN', shard .. 'ev:' .. id)
  return row
end
