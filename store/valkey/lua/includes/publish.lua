-- Tells one member something. Called last and under pcall: a refused publish must not leave a
-- script half written. The only place that publishes, so that a cluster can shard it.
local function publish(shard, member, kind, rest)
  local namespace, workflow, number = string.match(shard, '^(.*):{(.*)%.(%d+)}:$')
  local message = kind .. '\n' .. workflow .. '\n' .. number
  if rest then message = message .. '\n' .. rest end
  redis.pcall('PUBLISH', namespace .. ':hint:' .. member, message)
end
