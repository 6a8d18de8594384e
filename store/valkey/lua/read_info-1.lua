-- What is known of one run.
--
-- KEYS[1] shard prefix
-- ARGV[2] run id
-- Returns the row of run_info, or NOT_FOUND.
-- include: run_info
local shard, id = KEYS[1], ARGV[2]
return run_info(shard, id) or Code.NOT_FOUND
