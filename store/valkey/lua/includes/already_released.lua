-- True when `token` ended by this very `operation`: the caller repeats it after a lost reply.
local function already_released(run, token, operation)
  local last = redis.call('HMGET', run, 'last', 'lastop')
  return last[1] == token and last[2] == operation
end
