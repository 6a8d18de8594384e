-- Writes a shard's meta, which claim and submit look for: once written, a missing one means that
-- the server was emptied.
--
-- KEYS[1] shard prefix
-- ARGV[2] store id
-- ARGV[3] shard count
-- ARGV[4] layout version
-- Returns OK.
local meta = KEYS[1] .. 'meta'
redis.call('HSETNX', meta, 'store_id', ARGV[2])
redis.call('HSETNX', meta, 'shard_count', ARGV[3])
redis.call('HSETNX', meta, 'layout', ARGV[4])
return Code.OK
