-- The record of one idempotency key, shared by all claim scripts.
--   KEYS[1] record    one packed string: a MessagePack array
--   KEYS[2] response  the stored response, only where it must be gone before the record is, or is large
-- Every field is always there (0 or '' where it means nothing), so that the array has no holes. Times and durations are
-- in microseconds. New fields go to the end.

local STATE, TOKEN, FENCE, ATTEMPT, POLICY = 1, 2, 3, 4, 5
local RETENTION, LEASE, LEASE_END, CLAIMED_AT, RENEWED_AT = 6, 7, 8, 9, 10
local ENDED_AT, EXPIRES_AT = 11, 12  -- completed or abandoned; from when on the key is absent
local FINGERPRINT, OPERATION, HOLDER, TAKEN_OVER, CHECKPOINT, SEQUENCE = 13, 14, 15, 16, 17, 18
local NONCE, BEFORE = 19, 20         -- for the undo of a grant nobody heard of: its call, and the record before
local RESPONSE_KIND, RESPONSE, RESPONSE_UNTIL, RESPONSE_STATUS, RESPONSE_BYTES, DIGEST = 21, 22, 23, 24, 25, 26
local ABANDON_REASON, ORIGIN = 27, 28
local SPENT = 29                     -- {token, reason, until, class, digest}, oldest first
local RECEIPTS_UNTIL = 30            -- no receipt of the key's is good for longer
local LAST_FENCE = 31                -- the highest token given out, which an undone grant leaves above FENCE
local OWNER, OWNED_AT = 32, 33       -- the stream that keeps the lease alive, and when that asked to
local WAITERS = 34                   -- {service, until}: where calls wait for the claim in flight to end

-- NONE has only memory; GIVEN_UP was abandoned with effect UNKNOWN, ABANDONED with effect NONE.
local NONE, IN_FLIGHT, COMPLETED, GIVEN_UP, ABANDONED = 0, 1, 2, 3, 4
-- The stricter policy is the greater number.
local MARK_UNCERTAIN = 2
local NO_RESPONSE, INLINE, APART = 0, 1, 2
-- A larger response is a key of its own, so that not every look at the record carries it along.
local LARGEST_INLINE = 4096
local SPENT_KEPT = 16
-- Spent tokens are counted by class, so that no number of tokens that never were granted pushes out a real one. The
-- third class has one entry under a name that no token can have: an operator's Forget, which no receipt outlives.
local UNSEEN, GRANTED, FORGOTTEN = 0, 1, 2
local FORGET_MARK = '!forgotten'
-- For how long a service is told of the end after it asked to be, and how much of that is left when it is asked for anew.
local TOLD_FOR, TOLD_ANEW = 8000000, 4000000

local function blank()
  return {
    NONE, '', 0, 0, 1,
    0, 0, 0, 0, 0,
    0, 0,
    '', '', '', 0, '', 0,
    '', '',
    NO_RESPONSE, '', 0, 0, 0, '',
    '', '',
    {},
    0, 0,
    '', 0,
    {},
  }
end

local function unpacked(packed)
  local r = cmsgpack.unpack(packed)
  r[OWNER], r[OWNED_AT] = r[OWNER] or '', r[OWNED_AT] or 0
  r[WAITERS] = r[WAITERS] or {}
  return r
end

-- Until when anything about the key has to be known.
local function keep_until(r)
  local grant_ended = r[ENDED_AT] > 0 and r[ENDED_AT] or r[LEASE_END]
  local latest = grant_ended + memory
  if r[STATE] ~= NONE then latest = math.max(latest, r[EXPIRES_AT]) end
  for _, entry in ipairs(r[SPENT]) do latest = math.max(latest, entry[3]) end
  return latest
end

-- The record and its state now. Expiry is judged by the stored times, not by what Redis has removed: an
-- expired record has the state NONE, while r[STATE] still says what it was.
local function load()
  local packed = redis.call('GET', KEYS[1])
  if not packed then return nil, NONE end
  local r = unpacked(packed)
  if now >= keep_until(r) then return nil, NONE end
  local remembered = {}
  for _, entry in ipairs(r[SPENT]) do
    if now < entry[3] then remembered[#remembered + 1] = entry end
  end
  r[SPENT] = remembered
  if now >= r[EXPIRES_AT] then return r, NONE end
  return r, r[STATE]
end

local function save(r)
  local latest = keep_until(r)
  if r[RESPONSE_KIND] == INLINE and (r[RESPONSE_UNTIL] < latest or #r[RESPONSE] > LARGEST_INLINE) then
    -- A response must not lie about for longer than was asked, whatever else is remembered of the key.
    redis.call('SET', KEYS[2], r[RESPONSE], 'PXAT', text(math.ceil(r[RESPONSE_UNTIL] / 1000)))
    r[RESPONSE_KIND], r[RESPONSE] = APART, ''
  end
  redis.call('SET', KEYS[1], cmsgpack.pack(r), 'PXAT', text(math.ceil(latest / 1000)))
end

-- Why a token can hold the key no more, and what it completed; nil for one that may. The last holder of a
-- record that expired is spent too, unless its lease just ran out.
local function spent(r, token)
  if not r then return nil end
  for _, entry in ipairs(r[SPENT]) do
    if entry[1] == token then return entry[2], entry[5] end
  end
  if token == r[TOKEN] and now >= r[EXPIRES_AT] and now < r[ENDED_AT] + memory then
    if r[STATE] == COMPLETED then return 'COMPLETED', r[DIGEST] end
    if r[STATE] == GIVEN_UP then return 'RELEASED', '' end
  end
  return nil
end

local function spend(r, token, reason, until_time, class, digest)
  if token == '' or until_time <= now then return end
  local alike = 0
  for _, entry in ipairs(r[SPENT]) do
    if entry[4] == class then alike = alike + 1 end
  end
  if alike >= SPENT_KEPT then
    for i, entry in ipairs(r[SPENT]) do
      if entry[4] == class then table.remove(r[SPENT], i) break end
    end
  end
  r[SPENT][#r[SPENT] + 1] = {token, reason, until_time, class, digest or ''}
end

-- Has a service told when the claim in flight ends. Returns whether that changed the record: those that wait for long, or
-- are many, shall not write it all the time.
local function watch(r, service)
  local others = {}
  for _, waiter in ipairs(r[WAITERS]) do
    if waiter[1] == service and now + TOLD_ANEW < waiter[2] and waiter[2] <= now + TOLD_FOR then return false end
    if waiter[1] ~= service and now < waiter[2] then others[#others + 1] = waiter end
  end
  others[#others + 1] = {service, now + TOLD_FOR}
  r[WAITERS] = others
  return true
end

local function tell_waiters(r, ...)
  for _, waiter in ipairs(r[WAITERS]) do tell_service(waiter[1], ...) end
end

-- The claim in flight ended, or may be taken now: tells the services where somebody waits for that.
local function tell_of_end(r)
  tell_waiters(r, 'ended', KEYS[1])
  r[WAITERS] = {}
end

-- When a record that is not completed expires.
local function expiry(r, max_retention)
  local retention = r[RETENTION]
  if r[POLICY] == MARK_UNCERTAIN and (r[STATE] ~= ABANDONED or r[TAKEN_OVER] == 1) then
    retention = math.max(retention, max_retention)
  end
  return r[LEASE_END] + retention
end

-- A call of the holder's: whoever makes it has heard of the grant, which can no longer be undone.
local function heard(r)
  r[NONCE], r[BEFORE] = '', ''
end

local function extend(r, lease, max_retention)
  r[LEASE_END] = math.max(r[LEASE_END], now + lease)
  r[RENEWED_AT] = now
  r[EXPIRES_AT] = expiry(r, max_retention)
end

-- Why a token does not hold the key; nil for the one that does. `state` is that now.
local function loss(r, state, token)
  if state == COMPLETED then return 'COMPLETED' end
  local reason = spent(r, token)
  if reason then return reason end
  if state == NONE or state == ABANDONED then return 'NOT_FOUND' end
  if r[TOKEN] ~= token then return 'TAKEN_OVER' end
  if state == GIVEN_UP then return 'RELEASED' end
  return nil
end

local function drop_response(r)
  if r[RESPONSE_KIND] == APART then redis.call('UNLINK', KEYS[2]) end
  r[RESPONSE_KIND], r[RESPONSE], r[RESPONSE_UNTIL] = NO_RESPONSE, '', 0
  r[RESPONSE_STATUS], r[RESPONSE_BYTES] = 0, 0
end

-- Completes the record from now on; `response` is nil where only the fact is remembered.
local function complete(r, retention, response, digest)
  r[STATE], r[ENDED_AT], r[EXPIRES_AT], r[RETENTION] = COMPLETED, now, now + retention, retention
  r[TAKEN_OVER], r[CHECKPOINT], r[SEQUENCE] = 0, '', 0
  r[OWNER], r[OWNED_AT] = '', 0
  heard(r)
  tell_of_end(r)
  drop_response(r)
  r[DIGEST] = digest
  if response then
    r[RESPONSE_KIND], r[RESPONSE] = INLINE, response.bytes
    r[RESPONSE_UNTIL] = now + math.min(response.retention or retention, retention)
    r[RESPONSE_STATUS], r[RESPONSE_BYTES] = response.status, response.size
  end
end

-- What an operator sees; state '' where the key is not known.
local function describe(r, state)
  if state == NONE then return {''} end
  local name = 'COMPLETED'
  if state == ABANDONED then
    name = 'ABANDONED'
  elseif state == IN_FLIGHT and now < r[LEASE_END] then
    name = 'IN_FLIGHT'
  elseif state == IN_FLIGHT or state == GIVEN_UP then
    name = r[POLICY] == MARK_UNCERTAIN and 'UNCERTAIN' or 'LEASE_OVER'
  end
  local completed_at = state == COMPLETED and r[ENDED_AT] or 0
  local lease_end = state == IN_FLIGHT and r[LEASE_END] or 0
  local kept = r[RESPONSE_KIND] ~= NO_RESPONSE and now < r[RESPONSE_UNTIL]
  return {
    name, r[OPERATION], r[ATTEMPT], r[FENCE], r[HOLDER], r[POLICY], r[CLAIMED_AT], r[RENEWED_AT], completed_at,
    lease_end, r[EXPIRES_AT], r[RESPONSE_STATUS], kept and r[RESPONSE_BYTES] or 0, #r[CHECKPOINT],
    r[TAKEN_OVER], r[ABANDON_REASON], r[ORIGIN],
  }
end
