-- A page of the journal: as many events as the limits allow, at least one if there is one.
--
-- KEYS[1] the run's hash
-- KEYS[2] the run's journal
-- ARGV[2] sequence of the first event
-- ARGV[3] most events (at most 1,000)
-- ARGV[4] most bytes
-- Returns {length, trimmed, events}, or NOT_FOUND.
-- include: read_page
local run, journal = KEYS[1], KEYS[2]
local first, most, budget = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local state = redis.call('HMGET', run, 'st', 'trimmed')
if not state[1] then return Code.NOT_FOUND end
local trimmed = tonumber(state[2] or 0)
local length = redis.call('LLEN', journal) + trimmed
if first <= trimmed then return {length, trimmed, {}} end
local page = read_page(journal, first - trimmed - 1, most, budget, 1)
return {length, trimmed, page}
