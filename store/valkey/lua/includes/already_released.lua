-- True when the lock of `token` ended by this very `operation` (or the run began by it): the caller
-- repeats it after a lost reply.
local function already_released(run, token, operation)
  local last = redis.call('HMGET', run, 'last', 'lastop')
  return last[1] == token and last[2] == operation
end
