-- Stores the result of the work. One script, because the token must still hold the claim in the moment in
-- which the result is stored.
--   KEYS[1] record, KEYS[2] response
--   ARGV[4] token          ARGV[5] digest of the response, or of there being none
--   ARGV[6] 1 if there is a response   ARGV[7] response   ARGV[8] its status   ARGV[9] the bytes of its body
--   ARGV[10] retention, ms; '' for the claim's      ARGV[11] response retention, ms; '' for as long as the key
--   ARGV[12] 1 if there is a receipt: ARGV[13] its expiry, microseconds  ARGV[14] fence  ARGV[15] attempt
--            ARGV[16] retention, ms  ARGV[17] fingerprint
-- Returns after {now,
--   'completed', expires_at}: also to a repeat with an equal response, which changes nothing
--   'lost', reason}: NOT_FOUND, TAKEN_OVER, RELEASED, FORCED, COMPLETED
--   'late'}

local token, digest = ARGV[4], ARGV[5]

local r, state = load()
local reason, digest_then = spent(r, token)
if reason == 'COMPLETED' and digest_then == digest then
  -- The record expired since, but this token is remembered to have completed just this.
  return {now, 'completed', now}
end
if state == COMPLETED then
  if r[TOKEN] == token and r[DIGEST] == digest then return {now, 'completed', r[EXPIRES_AT]} end
  return {now, 'lost', 'COMPLETED'}
end
if reason then return {now, 'lost', reason} end

-- A fencing token that was used up by a grant that was undone says nothing of the key.
local nothing_known = not r or (r[STATE] == NONE and #r[SPENT] == 0)
if nothing_known and ARGV[12] == '1' and now < tonumber(ARGV[13]) then
  -- The store lost the record of a claim that was granted: the receipt says enough of it.
  local last_fence = r and r[LAST_FENCE] or 0
  r = blank()
  r[TOKEN], r[FENCE], r[ATTEMPT] = token, tonumber(ARGV[14]), tonumber(ARGV[15])
  r[LAST_FENCE] = math.max(last_fence, r[FENCE])
  r[RETENTION], r[FINGERPRINT] = ARGV[16] * 1000, ARGV[17]
elseif state == NONE or state == ABANDONED then
  return {now, 'lost', 'NOT_FOUND'}
elseif r[TOKEN] ~= token then
  return {now, 'lost', 'TAKEN_OVER'}
end

local response
if ARGV[6] == '1' then
  response = {bytes = ARGV[7], status = tonumber(ARGV[8]), size = tonumber(ARGV[9])}
  if ARGV[11] ~= '' then response.retention = ARGV[11] * 1000 end
end
complete(r, ARGV[10] == '' and r[RETENTION] or ARGV[10] * 1000, response, digest)
save(r)
return {now, 'completed', r[EXPIRES_AT]}
