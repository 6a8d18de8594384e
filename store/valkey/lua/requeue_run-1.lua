-- Appends and gives the run up, in its old place in the queue; with backoff, attempts in a row
-- without progress wait longer and longer.
--
-- KEYS[1] shard prefix
-- ARGV[2] run id
-- ARGV[3] token
-- ARGV[4] 1 with backoff, else 0
-- ARGV[5] jitter, 0 to 1
-- ARGV[6] sequence of the first event
-- ARGV[7…] events
-- Returns OK, or TOKEN, LENGTH.
-- include: now_ms, append_tail, already_released, give_back, wake_hungry
local shard, id, token, backoff = KEYS[1], ARGV[2], ARGV[3], ARGV[4] == '1'
local jitter, first = tonumber(ARGV[5]), tonumber(ARGV[6])
local run, journal = shard .. 'run:' .. id, shard .. 'ev:' .. id

local length = append_tail(run, journal, token, first, 7)
if length == Code.TOKEN and already_released(run, token, 'requeue') then return Code.OK end
if length < 0 then return length end

local now = now_ms()
local _, claimable = give_back(shard, id, now, 'requeue', backoff, jitter, 0)
if claimable then wake_hungry(shard, now) end
return Code.OK
