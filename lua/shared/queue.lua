-- Those that wait in turn for one resource, shared by all lock scripts: first come, first served, whatever service they
-- asked and whatever mode they asked for.
--   KEYS[6] queue      sorted set: token by its ticket
--   KEYS[7] waiters    hash: token -> one packed string, a MessagePack array
--   KEYS[8] deadlines  sorted set: token by the time until which its service has spoken for it, and GRACE_MARK
-- Only the first in the queue is ever woken, by a message to its service, which then tries again. So nobody is handed the
-- lock who may be gone.

local QUEUE, WAITERS, DEADLINES = KEYS[6], KEYS[7], KEYS[8]

-- A waiter. New fields go to the end.
local CALL, SERVICE, WANTED_MODE, WANTED_LIMIT = 1, 2, 3, 4

-- For how long a service speaks for its waiters at once; it does so again every 0.75 s.
local SPOKEN_FOR = 3000000
-- Where Redis itself was away, so that nobody could speak for anybody, all have this long to be heard again, in their order.
local GRACE = 1500000
-- A token cannot contain '!'.
local GRACE_MARK = '!grace'
-- For the stack of Lua's; and how often, so that no script takes long.
local DROPPED_AT_ONCE, DROPPED_TIMES = 1000, 10

local function waiter_of(token)
  local packed = redis.call('HGET', WAITERS, token)
  return packed and cmsgpack.unpack(packed) or nil
end

local function first_waiter() return redis.call('ZRANGE', QUEUE, 0, 0)[1] end

local function stand_in_queue(token, ticket, w)
  redis.call('HSET', WAITERS, token, cmsgpack.pack(w))
  redis.call('ZADD', QUEUE, text(ticket), token)
  redis.call('ZADD', DEADLINES, text(now + SPOKEN_FOR), token)
end

local function leave_queue(...)
  redis.call('HDEL', WAITERS, ...)
  redis.call('ZREM', DEADLINES, ...)
  redis.call('ZREM', QUEUE, ...)
  if not first_waiter() then redis.call('UNLINK', DEADLINES, WAITERS) end
end

-- The ticket of somebody new. As with fencing tokens, Redis's clock and what the service has seen keep them growing where
-- the queue was lost.
local function new_ticket()
  local last = redis.call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')
  return mint(last[2] and tonumber(last[2]) or 0)
end

-- How many wait, of those that are spoken for.
local function waiting()
  local count = redis.call('ZCOUNT', DEADLINES, '(' .. text(now), '+inf')
  local grace = count > 0 and redis.call('ZSCORE', DEADLINES, GRACE_MARK)
  return (grace and now < tonumber(grace)) and count - 1 or count
end

-- The first in the queue and what it waits for, which is not known where its service has yet to put that back. Somebody
-- else's hand may have deleted any of the keys: nobody may stand in the way without an end.
local function head()
  local token = first_waiter()
  if not token then return nil end
  if not redis.call('ZSCORE', DEADLINES, token) then
    local spoken_for = {}
    for _, each in ipairs(redis.call('ZRANGE', QUEUE, 0, DROPPED_AT_ONCE - 1)) do
      spoken_for[#spoken_for + 1] = text(now + SPOKEN_FOR)
      spoken_for[#spoken_for + 1] = each
    end
    redis.call('ZADD', DEADLINES, 'NX', unpack(spoken_for))
    keep()
  end
  return token, waiter_of(token)
end

-- The first in the queue, and for how long it has to wait yet, 0 if it may have the lock now; nil where nobody can be told.
local function next_in_turn()
  local token, w = head()
  if not w then return nil end
  return token, w, is_free_for(w[WANTED_MODE], w[WANTED_LIMIT]) and 0 or changes_at(w[WANTED_MODE]) - now
end

-- Has the service of the first in the queue try for it: at once, or when the lock can next change.
local function wake_next()
  local token, w, wait = next_in_turn()
  if token then tell_service(w[SERVICE], 'turn', KEYS[2], token, text(wait)) end
end

local function due(most)
  return redis.call('ZRANGEBYSCORE', DEADLINES, '-inf', text(now), 'LIMIT', 0, most)
end

-- Where the clock was set back, those whose services are gone would stand in the way until it is where it was.
local function count_from_now()
  local latest = text(now + SPOKEN_FOR)
  for _, token in ipairs(redis.call('ZRANGEBYSCORE', DEADLINES, '(' .. latest, '+inf', 'LIMIT', 0, DROPPED_AT_ONCE)) do
    redis.call('ZADD', DEADLINES, latest, token)
  end
end

-- Drops those that nobody has spoken for in time. Only the calling service can tell whether Redis was away, by the answers
-- that it did not get.
local function drop_silent(redis_was_away)
  local next_due = redis.call('ZRANGE', DEADLINES, 0, 0, 'WITHSCORES')[2]
  if not next_due then return end
  count_from_now()
  if now < tonumber(next_due) then return end
  if redis_was_away then
    local grace = redis.call('ZSCORE', DEADLINES, GRACE_MARK)
    if not grace then redis.call('ZADD', DEADLINES, text(now + GRACE), GRACE_MARK) end
    if not grace or now < tonumber(grace) then return end
  end
  local first = first_waiter()
  for _ = 1, DROPPED_TIMES do
    local silent = due(DROPPED_AT_ONCE)
    if #silent == 0 then break end
    leave_queue(unpack(silent))
  end
  if first_waiter() ~= first then wake_next() end
end
