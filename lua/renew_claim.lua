-- Extends the lease on a claim, and can save a checkpoint. One script, so that a late renewal cannot revive
-- a claim that was just taken over.
--   KEYS[1] record, KEYS[2] response
--   ARGV[4] token   ARGV[5] lease, ms; '' for that of the claim   ARGV[6] 1 if a checkpoint is given
--   ARGV[7] checkpoint   ARGV[8] its sequence   ARGV[9] the server's largest retention, ms
--   ARGV[10] the stream that asks, '' where none does   ARGV[11] when it was asked, microseconds; 0 for none
-- Returns after {now,
--   'renewed', lease_end, fence}: also after the end of the lease, while nobody took the claim over
--   'lost', reason}: NOT_FOUND, TAKEN_OVER, RELEASED, FORCED, COMPLETED
--   'late'}

local token, given, checkpoint, sequence = ARGV[4], ARGV[6] == '1', ARGV[7], tonumber(ARGV[8])
local max_retention = ARGV[9] * 1000

local r, state = load()
local reason = loss(r, state, token)
if reason then return {now, 'lost', reason} end

heard(r)
own(r, OWNER, ARGV[10], tonumber(ARGV[11]))
extend(r, ARGV[5] == '' and r[LEASE] or ARGV[5] * 1000, max_retention)
if given and (sequence == 0 or sequence > r[SEQUENCE]) then
  r[CHECKPOINT] = checkpoint
  if sequence > 0 then r[SEQUENCE] = sequence end
end
save(r)
return {now, 'renewed', r[LEASE_END], r[FENCE]}
