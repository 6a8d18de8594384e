-- The owner's journal write: each event is applied once, however often it is sent, and nothing is
-- written once the token is no longer the run's. The hot path: touches two keys and no more.
--
-- KEYS[1] the run's hash
-- KEYS[2] the run's journal
-- ARGV[2] token
-- ARGV[3] sequence of the first event
-- ARGV[4…] events
-- Returns {length, flags}, or TOKEN, or LENGTH when events before the first are missing.
-- include: append_tail
local run, journal = KEYS[1], KEYS[2]
local token, first = ARGV[2], tonumber(ARGV[3])

local length, flags = append_tail(run, journal, token, first, 4)
if length < 0 then return length end
return {length, flags}
