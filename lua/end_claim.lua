#!lua flags=allow-oom
-- Ends the lease on a claim whose stream ended, and leaves the rest to its policy. One script, because the lease must still be
-- that stream's: one that was opened since may keep it alive. Runs while memory is short: it writes no more than there was.
--   KEYS[1] record, KEYS[2] response
--   ARGV[4] token   ARGV[5] the stream   ARGV[6] the server's largest retention, ms
-- Returns after {now,
--   'ended'}: also where the lease was over already, and nobody took the claim over
--   'kept'}: the lease is not that stream's
--   'late'}

local token = ARGV[4]
local r, state = load()
if state ~= IN_FLIGHT or r[TOKEN] ~= token or r[OWNER] ~= ARGV[5] then return {now, 'kept'} end

r[LEASE_END], r[OWNER] = math.min(r[LEASE_END], now), ''
r[EXPIRES_AT] = expiry(r, ARGV[6] * 1000)
tell_of_end(r)
save(r)
return {now, 'ended'}
