-- Runs whose keys have expired and that still have lines in the indexes. Changes nothing.
--
-- KEYS[1] shard prefix
-- ARGV[2] limit (at most 500)
-- Returns their ids.
-- include: now_ms
local shard, limit = KEYS[1], ARGV[2]
return redis.call('ZRANGEBYSCORE', shard .. 'done', '-inf', now_ms(), 'LIMIT', 0, limit)
