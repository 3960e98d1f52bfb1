#!lua flags=allow-oom
-- Takes back a grant whose caller went away before it was told. One script, because a repeat with the same
-- token may be answered at any moment, and its grant must stand. Runs while memory is short: it frees some.
--   KEYS[1] record, KEYS[2] response
--   ARGV[4] token   ARGV[5] nonce of the call that created the grant
-- Returns after {now,
--   'undone'}: the record is as it was before the grant; only the fencing token stays used, and a stricter policy that
--     others asked for meanwhile
--   'kept'}: the grant is not that call's, or somebody has heard of it
--   'late'}

local token, nonce = ARGV[4], ARGV[5]

local r = load()
if not r or r[STATE] ~= IN_FLIGHT or r[TOKEN] ~= token or r[NONCE] ~= nonce then return {now, 'kept'} end

local restored = r[BEFORE] == '' and blank() or unpacked(r[BEFORE])
restored[LAST_FENCE], restored[WAITERS] = r[LAST_FENCE], r[WAITERS]
restored[SPENT] = {}
for _, entry in ipairs(r[SPENT]) do
  -- The grant spent its former holder. One that had given up before, after its record expired, stays spent.
  local by_the_grant = entry[1] == restored[TOKEN] and entry[4] == GRANTED
  if not by_the_grant then restored[SPENT][#restored[SPENT] + 1] = entry end
end
if restored[STATE] == NONE then restored[LEASE_END] = now else restored[CHECKPOINT] = r[CHECKPOINT] end
tell_of_end(restored)
save(restored)
return {now, 'undone'}
