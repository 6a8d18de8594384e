-- Keeps an answer (whole numbers) for a minute, for a repeat of the same operation.
local function remember(shard, operation, answer)
  local words = {}
  for i = 1, #answer do words[i] = string.format('%.0f', answer[i]) end
  redis.call('SET', shard .. 'op:' .. operation, table.concat(words, ' '), 'PX', 60000)
end
