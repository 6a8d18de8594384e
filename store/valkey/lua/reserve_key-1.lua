-- Ties an idempotency key to a run id, once: whoever comes second gets what the first one tied.
--
-- KEYS[1] the key's record
-- ARGV[2] run id
-- ARGV[3] digest of the submission
-- ARGV[4] lifetime of the record in ms
-- Returns {run id, digest} as recorded.
local reservation, id, digest, ttl = KEYS[1], ARGV[2], ARGV[3], ARGV[4]

if redis.call('HSETNX', reservation, 'run', id) == 1 then
  redis.call('HSET', reservation, 'digest', digest)
  redis.call('PEXPIRE', reservation, ttl)
end
return redis.call('HMGET', reservation, 'run', 'digest')
