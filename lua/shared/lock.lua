-- The holders of one resource, shared by all lock scripts.
--   KEYS[1] holders  hash: token -> one packed string, a MessagePack array
--   KEYS[2] ends     sorted set: token by the time from which it no longer counts
--   KEYS[3] limits   sorted set: token by its max_holders, only of those that named one
--   KEYS[4] spent    hash: token -> reason and times, and the two fields below, for `memory` after the last use
--   KEYS[5] live     sorted set: token by the end of its lease, only of those that were not released
-- A holder is live until its lease ends or it is released. It counts against others until lock_delay and
-- hold_at_least are over as well. The sorted sets keep every call's script logarithmic
-- in the number of holders.

local HOLDERS, ENDS, LIMITS, SPENT, LIVE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
-- A token cannot contain '!'.
local LAST_FENCE, LAST_GRANT = '!fence', '!granted'

-- A holder. Times and durations are in microseconds; `released` is 1 while only hold_at_least runs. New fields go to
-- the end.
local FENCE, MODE, LEASE_END, LEASE, ACQUIRED_AT = 1, 2, 3, 4, 5
local HOLD_UNTIL, DELAY, LIMIT, RELEASED, NONCE, HOLDER = 6, 7, 8, 9, 10, 11
local GRANTED_BEFORE = 12            -- when the resource was acquired last before this, for the undo
local OWNER, OWNED_AT = 13, 14       -- the stream that keeps it alive, and when that asked to
local EXCLUSIVE = 'EXCLUSIVE'

-- How many expired holders one script clears away, so that none takes long.
local CLEARED_AT_ONCE = 100
-- A hash of up to 128 fields stays in Redis's compact form; tokens that never were granted are counted apart, so
-- that no number of them pushes out a real one.
local SPENT_MOST, SPENT_GRANTED, SPENT_UNSEEN = 126, 100, 16

local function holder_of(token)
  local packed = redis.call('HGET', HOLDERS, token)
  if not packed then return nil end
  local h = cmsgpack.unpack(packed)
  h[OWNER], h[OWNED_AT] = h[OWNER] or '', h[OWNED_AT] or 0
  return h
end

local function is_live(h) return h ~= nil and h[RELEASED] == 0 and now < h[LEASE_END] end

local function counts_until(h)
  if h[RELEASED] == 1 then return h[HOLD_UNTIL] end
  return math.max(h[HOLD_UNTIL], h[LEASE_END] + h[DELAY])
end

local function put(token, h)
  redis.call('HSET', HOLDERS, token, cmsgpack.pack(h))
  redis.call('ZADD', ENDS, text(counts_until(h)), token)
  if h[RELEASED] == 1 then
    redis.call('ZREM', LIVE, token)
  else
    redis.call('ZADD', LIVE, text(h[LEASE_END]), token)
  end
end

local function remove(token)
  redis.call('HDEL', HOLDERS, token)
  redis.call('ZREM', ENDS, token)
  redis.call('ZREM', LIMITS, token)
  redis.call('ZREM', LIVE, token)
end

-- Spent tokens are '<letter> <until> <lease_end>'. The letter: R released, F forced, L its lease ended, U never
-- seen before it was released.
local REASONS = {R = 'RELEASED', F = 'FORCED', U = 'RELEASED'}

local function drop_oldest_spent()
  local all = redis.call('HGETALL', SPENT)
  local granted, unseen = {}, {}
  for i = 1, #all, 2 do
    local letter, until_time = string.match(all[i + 1], '^(%u) (%d+)')
    if letter then
      local class = letter == 'U' and unseen or granted
      class[#class + 1] = {all[i], tonumber(until_time)}
    end
  end
  local function keep_newest(class, most)
    table.sort(class, function(a, b) return a[2] > b[2] end)
    for i = #class, 1, -1 do
      if i <= most and now < class[i][2] then break end
      redis.call('HDEL', SPENT, class[i][1])
    end
  end
  keep_newest(granted, SPENT_GRANTED)
  keep_newest(unseen, SPENT_UNSEEN)
end

local function spend(token, letter, until_time, lease_end)
  redis.call('HSET', SPENT, token, letter .. ' ' .. text(until_time) .. ' ' .. text(lease_end or 0))
  if redis.call('HLEN', SPENT) > SPENT_MOST then drop_oldest_spent() end
end

local function last_grant() return tonumber(redis.call('HGET', SPENT, LAST_GRANT) or 0) end

-- Nobody may renew a lease that ended, whether or not somebody acquired the lock since.
local function lease_over_reason(lease_end)
  return last_grant() >= lease_end and 'TAKEN_OVER' or 'LEASE_OVER'
end

-- Why a token can no longer hold the lock, with the letter of its entry; nil for one that does or may.
local function spent(token, h)
  -- However many were spent since, a holder that was released is one for as long as hold_at_least runs.
  if h and h[RELEASED] == 1 and now < h[HOLD_UNTIL] then return 'RELEASED', 'R' end
  local entry = redis.call('HGET', SPENT, token)
  if entry then
    local letter, until_time, lease_end = string.match(entry, '^(%u) (%d+) (%d+)$')
    if now < tonumber(until_time) then
      return REASONS[letter] or lease_over_reason(tonumber(lease_end)), letter
    end
  end
  if h and h[RELEASED] == 0 and now >= h[LEASE_END]
    and now < math.max(h[LEASE_END] + memory, counts_until(h)) then
    return lease_over_reason(h[LEASE_END]), 'L'
  end
  return nil
end

-- The live holder that a token names; nil for one that does not hold the lock, with the reason.
local function holding(token)
  local h = holder_of(token)
  local reason = spent(token, h)
  if reason then return nil, reason end
  if not is_live(h) then return nil, 'NOT_FOUND' end
  return h
end

-- Those whose lease ended and whose streams are to be told so, once it is known whether somebody acquired the lock since.
local to_be_told = {}

local function tell_later(token, h)
  if h[OWNER] ~= '' then to_be_told[#to_be_told + 1] = {h[OWNER], token, h[LEASE_END]} end
end

local function tell_ended()
  for _, ended in ipairs(to_be_told) do
    tell_lost(ended[1], KEYS[2], ended[2], lease_over_reason(ended[3]))
  end
end

-- How long a holder that nobody released has held the lock.
local function held_for(h) return math.min(now, h[LEASE_END]) - h[ACQUIRED_AT] end

-- Clears away holders that no longer count, and remembers those whose lease ended. Returns how many they were, and for how
-- long those held the lock.
local function clear_ended()
  local held = {}
  local ended = redis.call('ZRANGEBYSCORE', ENDS, '-inf', text(now), 'LIMIT', 0, CLEARED_AT_ONCE)
  for _, token in ipairs(ended) do
    local h = holder_of(token)
    remove(token)
    if h and h[RELEASED] == 0 then
      held[#held + 1] = held_for(h)
      tell_later(token, h)
      if now < h[LEASE_END] + memory then spend(token, 'L', h[LEASE_END] + memory, h[LEASE_END]) end
    end
  end
  return #ended, held
end

-- Finds those whose lease ended and who count on. Each is looked at once, since no cost may grow with their number.
local function find_ended()
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', LIVE, '-inf', text(now), 'LIMIT', 0, CLEARED_AT_ONCE)) do
    redis.call('ZREM', LIVE, token)
    local h = holder_of(token)
    if h and h[OWNER] ~= '' then
      tell_later(token, h)
      h[OWNER] = ''
      redis.call('HSET', HOLDERS, token, cmsgpack.pack(h))
    end
  end
end

-- How many count now, and whether one of them is exclusive: then it is the only one.
local function counting()
  local count = redis.call('ZCOUNT', ENDS, '(' .. text(now), '+inf')
  if count == 0 then return 0, false end
  local last = redis.call('ZREVRANGE', ENDS, 0, 0)[1]
  local h = holder_of(last)
  return count, h ~= nil and h[MODE] == EXCLUSIVE
end

-- The smallest limit that one of those that count named; 0 for none. Where the first has ended, so may have any
-- number of others: they are taken off in bunches, each once.
local function smallest_limit()
  local at_once = 1
  while true do
    local first = redis.call('ZRANGE', LIMITS, 0, at_once - 1, 'WITHSCORES')
    if #first == 0 then return 0 end
    local tokens, ended, limit = {}, {}, nil
    for i = 1, #first, 2 do tokens[#tokens + 1] = first[i] end
    local ends = redis.call('ZMSCORE', ENDS, unpack(tokens))
    for i, token in ipairs(tokens) do
      if ends[i] and now < tonumber(ends[i]) then
        limit = tonumber(first[2 * i])
        break
      end
      ended[#ended + 1] = token
    end
    if #ended > 0 then redis.call('ZREM', LIMITS, unpack(ended)) end
    if limit then return limit end
    at_once = CLEARED_AT_ONCE
  end
end

local function last_end()
  local last = redis.call('ZREVRANGE', ENDS, 0, 0, 'WITHSCORES')
  return last[2] and tonumber(last[2]) or 0
end

-- Whether nobody who counts stands in the way of a request.
local function is_free_for(mode, max_holders)
  local count, exclusive = counting()
  if count == 0 then return true end
  if mode == EXCLUSIVE or exclusive then return false end
  local limit = smallest_limit()
  if max_holders > 0 and (limit == 0 or max_holders < limit) then limit = max_holders end
  return limit == 0 or count < limit
end

-- When what stands in the way of a request can next change without a release: an exclusive one has to outwait all, a
-- shared one the first of those that count.
local function changes_at(mode)
  if mode == EXCLUSIVE then return last_end() end
  return tonumber(redis.call('ZRANGEBYSCORE', ENDS, '(' .. text(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
end

-- However short `memory` is, those who wait are known for longer than their services are silent.
local QUEUE_AT_LEAST = 10000000

-- Every key goes `memory` after its last use, or after the last holder counts no more.
local function keep()
  local latest = math.max(now, last_end()) + memory
  for i = 1, 5 do expire_at(KEYS[i], latest) end
  for i = 6, 8 do expire_at(KEYS[i], math.max(latest, now + QUEUE_AT_LEAST)) end
end

-- Adds what is told of a holder: five values.
local function tell(told, h)
  for _, value in ipairs({h[HOLDER], h[FENCE], h[MODE], h[ACQUIRED_AT], h[LEASE_END]}) do told[#told + 1] = value end
end

-- Up to `most` live holders, five values each: holder, fence, mode, acquired_at, lease_end. Found by the ends of their
-- leases: there may be any number of others that only count, for longer than these.
local function live_holders(most)
  local found = {}
  for _, token in ipairs(redis.call('ZREVRANGEBYSCORE', LIVE, '+inf', '(' .. text(now), 'LIMIT', 0, most)) do
    local h = holder_of(token)
    if h then tell(found, h) end
  end
  return found
end
