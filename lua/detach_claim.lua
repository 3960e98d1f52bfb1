#!lua flags=allow-oom
-- Takes the lease on a claim off the stream that keeps it alive, and leaves it standing. One script, because a stream that
-- renewed it since keeps it. Runs while memory is short: it writes no more than there was.
--   KEYS[1] record, KEYS[2] response
--   ARGV[4] token   ARGV[5] the stream   ARGV[6] when it was asked, microseconds
-- Returns after {now,
--   'renewed', lease_end, fence}: what is left, with nothing renewed; also where the lease is on another stream, or on none
--   'lost', reason}: NOT_FOUND, TAKEN_OVER, RELEASED, FORCED, COMPLETED
--   'late'}

local token = ARGV[4]
local r, state = load()
local reason = loss(r, state, token)
if reason then return {now, 'lost', reason} end

heard(r)
disown(r, OWNER, ARGV[5], tonumber(ARGV[6]))
save(r)
return {now, 'renewed', r[LEASE_END], r[FENCE]}
