-- Extends the lease on a lock that is held. One script, because a lease that ended must never be revived.
--   KEYS[1] holders, KEYS[2] ends, KEYS[3] limits, KEYS[4] spent, KEYS[5] live, KEYS[6] queue, KEYS[7] waiters, KEYS[8] deadlines
--   ARGV[4] token   ARGV[5] lease, ms; '' for that of the acquisition
--   ARGV[6] the stream that asks, '' where none does   ARGV[7] when it was asked, microseconds; 0 for none
-- Returns after {now,
--   'renewed', lease_end, fence}
--   'lost', reason}: NOT_FOUND, RELEASED, TAKEN_OVER, LEASE_OVER, FORCED
--   'late'}

local token = ARGV[4]
local h, reason = holding(token)
if not h then return {now, 'lost', reason} end

-- Whoever renews has heard of the grant, which can no longer be undone.
h[NONCE] = ''
own(h, OWNER, ARGV[6], tonumber(ARGV[7]))
h[LEASE_END] = math.max(h[LEASE_END], now + (ARGV[5] == '' and h[LEASE] or ARGV[5] * 1000))
put(token, h)
keep()
return {now, 'renewed', h[LEASE_END], h[FENCE]}
