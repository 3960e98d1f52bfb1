#!lua flags=allow-oom
-- Takes the lease on a lock off the stream that keeps it alive, and leaves it standing. One script, because a stream that
-- renewed it since keeps it. Runs while memory is short: it writes no more than there was.
--   KEYS[1] holders, KEYS[2] ends, KEYS[3] limits, KEYS[4] spent, KEYS[5] live, KEYS[6] queue, KEYS[7] waiters, KEYS[8] deadlines
--   ARGV[4] token   ARGV[5] the stream   ARGV[6] when it was asked, microseconds
-- Returns after {now,
--   'renewed', lease_end, fence}: what is left, with nothing renewed; also where the lease is on another stream, or on none
--   'lost', reason}: NOT_FOUND, RELEASED, TAKEN_OVER, LEASE_OVER, FORCED
--   'late'}

local token = ARGV[4]
local h, reason = holding(token)
if not h then return {now, 'lost', reason} end

h[NONCE] = ''
disown(h, OWNER, ARGV[5], tonumber(ARGV[6]))
put(token, h)
keep()
return {now, 'renewed', h[LEASE_END], h[FENCE]}
