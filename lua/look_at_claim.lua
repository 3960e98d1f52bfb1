#!lua flags=no-writes
-- Looks whether the lease on a claim is still on the stream that kept it alive. One script, so that all it answers holds at once.
--   KEYS[1] record, KEYS[2] response
--   ARGV[4] token   ARGV[5] the stream
-- Returns after {now,
--   'kept', lease_end}: also after the end of the lease, while nobody took the claim over
--   'elsewhere'}: the lease is on another stream, or on none
--   'lost', reason}: NOT_FOUND, TAKEN_OVER, RELEASED, FORCED, COMPLETED: by the token itself
--   'late'}

local token = ARGV[4]
local r, state = load()
-- What a claim that is completed is to others says nothing of how this token lost it.
local reason = spent(r, token) or loss(r, state, token)
if reason then return {now, 'lost', reason} end
if r[OWNER] ~= ARGV[5] then return {now, 'elsewhere'} end
return {now, 'kept', r[LEASE_END]}
