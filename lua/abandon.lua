#!lua flags=allow-oom
-- Gives a claim up. One script, because only the holder may, and because a give-up that overtakes its own
-- late claim must win: a token not seen yet is spent. Runs while memory is short, since it frees some.
--   KEYS[1] record, KEYS[2] response
--   ARGV[4] token   ARGV[5] effect: NONE or UNKNOWN   ARGV[6] 1 to keep fingerprint and checkpoint
--   ARGV[7] reason  ARGV[8] the server's largest retention, ms
-- Returns after {now,
--   'abandoned'}: also to a repeat, and where the key is not known
--   'lost', reason}: TAKEN_OVER, FORCED, COMPLETED
--   'late'}

local token, effect, keep = ARGV[4], ARGV[5], ARGV[6] == '1'
local max_retention = ARGV[8] * 1000

local r, state = load()
local reason = spent(r, token)
if reason == 'RELEASED' then return {now, 'abandoned'} end
if reason then return {now, 'lost', state == COMPLETED and 'COMPLETED' or reason} end

local holds = (state == IN_FLIGHT or state == GIVEN_UP or state == COMPLETED) and r[TOKEN] == token
if not holds then
  local told = 'RELEASED'
  if state == IN_FLIGHT or state == GIVEN_UP then told = 'TAKEN_OVER' end
  if state == COMPLETED then told = 'COMPLETED' end
  r = r or blank()
  spend(r, token, told, now + memory, UNSEEN)
  -- A call with it may wait for the holder.
  tell_waiters(r, 'spent', KEYS[1], token)
  save(r)
  if told == 'RELEASED' then return {now, 'abandoned'} end
  return {now, 'lost', told}
end

if state == COMPLETED then return {now, 'lost', 'COMPLETED'} end
if state == GIVEN_UP then return {now, 'abandoned'} end

heard(r)
tell_of_end(r)
r[ENDED_AT], r[ABANDON_REASON] = now, ARGV[7]
if effect == 'UNKNOWN' then
  r[STATE] = GIVEN_UP
  r[LEASE_END] = math.min(r[LEASE_END], now)
else
  r[STATE] = ABANDONED
  r[TOKEN], r[LEASE_END] = '', now
  spend(r, token, 'RELEASED', now + memory, GRANTED)
  if not keep and r[TAKEN_OVER] == 0 then
    r[FINGERPRINT], r[OPERATION], r[CHECKPOINT] = '', '', ''
  end
end
r[EXPIRES_AT] = expiry(r, max_retention)
save(r)
return {now, 'abandoned'}
