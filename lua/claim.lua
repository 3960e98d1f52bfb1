-- Claims an idempotency key. One script, because between the look at the record and the grant nobody else
-- may be granted the key.
--   KEYS[1] record, KEYS[2] response
--   ARGV[4] token    ARGV[5] nonce of the call    ARGV[6] fingerprint     ARGV[7] operation
--   ARGV[8] holder   ARGV[9] lease, ms            ARGV[10] retention, ms  ARGV[11] policy (1 TAKE_OVER, 2 MARK_UNCERTAIN)
--   ARGV[12] the server's largest retention, ms   ARGV[13] origin
--   ARGV[14] the service in which the call waits for a claim in flight to end, which is told then; '' where it does not wait
-- Returns after {now,
--   'claimed', already_held, fence, attempt, lease_end, taken_over, checkpoint, expires_at, retention}: the token holds the key
--   'in_flight', lease_end, attempt, claimed_at, holder}: another token does
--   'replay', has_response, response, completed_at, expires_at, attempt, origin}: the work is done
--   'response_lost'}: it is done, and its response is gone before its time
--   'mismatch', operation}: the key was used for another request
--   'uncertain', since, attempt, checkpoint, holder}: a holder fell silent under MARK_UNCERTAIN
--   'lost', reason}: the token is spent: RELEASED, TAKEN_OVER, FORCED, COMPLETED
--   'late'}
-- An origin is the call that made a grant: the sixteen bytes of its trace id and the eight of its span id, as far as it has
-- them.

local token, nonce, fingerprint, operation, holder = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local lease, retention, policy = ARGV[9] * 1000, ARGV[10] * 1000, tonumber(ARGV[11])
local max_retention, origin, service = ARGV[12] * 1000, ARGV[13], ARGV[14]

local r, state = load()

-- Saves the grant, whose answer carries a receipt that is good until the record would expire.
local function claimed(already_held)
  r[RECEIPTS_UNTIL] = math.max(r[RECEIPTS_UNTIL], r[EXPIRES_AT])
  save(r)
  return {
    now, 'claimed', already_held and 1 or 0, r[FENCE], r[ATTEMPT], r[LEASE_END], r[TAKEN_OVER], r[CHECKPOINT],
    r[EXPIRES_AT], r[RETENTION],
  }
end

local function replay()
  local response = r[RESPONSE_KIND] == INLINE and r[RESPONSE] or nil
  if state == NONE or now >= r[RESPONSE_UNTIL] then
    response = nil
  elseif r[RESPONSE_KIND] == APART then
    response = redis.call('GET', KEYS[2])
    if not response then return {now, 'response_lost'} end
  end
  return {now, 'replay', response and 1 or 0, response or '', r[ENDED_AT], r[EXPIRES_AT], r[ATTEMPT], r[ORIGIN]}
end

-- What others ask for while a grant stands that may yet be undone holds for the record that its undo brings back.
local function make_stricter_before()
  if policy ~= MARK_UNCERTAIN or r[TOKEN] == token or r[BEFORE] == '' then return false end
  local before = unpacked(r[BEFORE])
  local was_open = before[STATE] == IN_FLIGHT or before[STATE] == GIVEN_UP
    or (before[STATE] == ABANDONED and before[TAKEN_OVER] == 1)
  if not was_open or now >= before[EXPIRES_AT] or before[POLICY] == policy then return false end
  before[POLICY] = policy
  before[EXPIRES_AT] = expiry(before, max_retention)
  r[BEFORE] = cmsgpack.pack(before)
  return true
end

if state ~= NONE and r[FINGERPRINT] ~= '' and r[FINGERPRINT] ~= fingerprint then
  return {now, 'mismatch', r[OPERATION]}
end

local reason = spent(r, token)
if state == COMPLETED or (reason == 'COMPLETED' and r[STATE] == COMPLETED and r[TOKEN] == token) then
  return replay()
end
if reason then return {now, 'lost', reason} end

if state == IN_FLIGHT or state == GIVEN_UP then
  local changed = policy > r[POLICY]
  if changed then
    r[POLICY] = policy
    r[EXPIRES_AT] = expiry(r, max_retention)
  end
  changed = make_stricter_before() or changed

  if r[TOKEN] == token and state == IN_FLIGHT then
    -- The same nonce is the same call, sent again by the service after its connection broke.
    local same_call = r[NONCE] == nonce
    if not same_call then heard(r) end
    extend(r, lease, max_retention)
    return claimed(not same_call)
  end

  local answer, watched
  if r[TOKEN] == token then
    answer = {now, 'lost', 'RELEASED'}
  elseif now < r[LEASE_END] then
    watched = service ~= '' and watch(r, service)
    answer = {now, 'in_flight', r[LEASE_END], r[ATTEMPT], r[CLAIMED_AT], r[HOLDER]}
  elseif r[POLICY] == MARK_UNCERTAIN then
    answer = {now, 'uncertain', r[LEASE_END], r[ATTEMPT], r[CHECKPOINT], r[HOLDER]}
  end
  if answer then
    if changed then
      save(r)
    elseif watched then
      -- Where Redis takes no write its services look by themselves.
      pcall(save, r)
    end
    return answer
  end
end

-- From here on the token is granted the key: nobody holds it, or the holder fell silent.
local before = r
r = blank()
r[STATE], r[TOKEN], r[NONCE], r[HOLDER], r[ORIGIN] = IN_FLIGHT, token, nonce, holder, origin
r[FINGERPRINT], r[OPERATION] = fingerprint, operation
r[ATTEMPT], r[POLICY], r[RETENTION], r[LEASE] = 1, policy, retention, lease
r[FENCE] = mint(before and before[LAST_FENCE] or 0)
r[LAST_FENCE] = r[FENCE]

if before then
  local spent_before = before[SPENT]
  before[CHECKPOINT], r[CHECKPOINT] = '', before[CHECKPOINT]
  before[RESPONSE], before[RESPONSE_KIND], before[NONCE], before[BEFORE] = '', NO_RESPONSE, '', ''
  before[SPENT] = {}
  r[WAITERS], before[WAITERS] = before[WAITERS], {}
  if state == NONE then before[OPERATION], before[HOLDER], before[ABANDON_REASON] = '', '', '' end
  r[BEFORE] = cmsgpack.pack(before)
  r[SPENT], r[RECEIPTS_UNTIL] = spent_before, before[RECEIPTS_UNTIL]

  if state == NONE then
    r[CHECKPOINT] = ''
    if before[TOKEN] ~= token then
      if before[STATE] == IN_FLIGHT then
        spend(r, before[TOKEN], 'TAKEN_OVER', before[LEASE_END] + memory, GRANTED)
        tell_lost(before[OWNER], KEYS[1], before[TOKEN], 'TAKEN_OVER')
      elseif before[STATE] == COMPLETED then
        spend(r, before[TOKEN], 'COMPLETED', before[ENDED_AT] + memory, GRANTED, before[DIGEST])
      elseif before[STATE] == GIVEN_UP then
        spend(r, before[TOKEN], 'RELEASED', before[ENDED_AT] + memory, GRANTED)
      end
    end
  else
    r[ATTEMPT] = before[ATTEMPT] + 1
    r[TAKEN_OVER] = before[TAKEN_OVER]
    if state == IN_FLIGHT then
      spend(r, before[TOKEN], 'TAKEN_OVER', now + memory, GRANTED)
      tell_lost(before[OWNER], KEYS[1], before[TOKEN], 'TAKEN_OVER')
      r[TAKEN_OVER] = 1
    elseif state == GIVEN_UP then
      spend(r, before[TOKEN], 'RELEASED', before[ENDED_AT] + memory, GRANTED)
      r[TAKEN_OVER] = 1
    end
    if r[TAKEN_OVER] == 1 then
      r[POLICY] = math.max(before[POLICY], policy)
      r[RETENTION] = math.max(before[RETENTION], retention)
    end
  end
end

r[CLAIMED_AT] = now
extend(r, lease, max_retention)
return claimed(false)
