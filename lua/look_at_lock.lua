#!lua flags=no-writes
-- Looks whether the lease on a lock is still on the stream that kept it alive. One script, so that all it answers holds at once.
--   KEYS[1] holders, KEYS[2] ends, KEYS[3] limits, KEYS[4] spent, KEYS[5] live, KEYS[6] queue, KEYS[7] waiters, KEYS[8] deadlines
--   ARGV[4] token   ARGV[5] the stream
-- Returns after {now,
--   'kept', lease_end}
--   'elsewhere'}: the lease is on another stream, or on none
--   'lost', reason}: NOT_FOUND, RELEASED, TAKEN_OVER, LEASE_OVER, FORCED
--   'late'}

local h, reason = holding(ARGV[4])
if not h then return {now, 'lost', reason} end
if h[OWNER] ~= ARGV[5] then return {now, 'elsewhere'} end
return {now, 'kept', h[LEASE_END]}
