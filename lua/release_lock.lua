#!lua flags=allow-oom
-- Releases a lock that is held with this token, never anybody else's. One script, because the token must still hold the
-- lock in the moment in which it is released. A release that overtakes its own late acquisition must win: a token
-- not seen yet is spent, and one that waits leaves the queue. Runs while memory is short, since it frees some.
--   KEYS[1] holders, KEYS[2] ends, KEYS[3] limits, KEYS[4] spent, KEYS[5] live, KEYS[6] queue, KEYS[7] waiters, KEYS[8] deadlines
--   ARGV[4] token
-- Returns after {now,
--   'released', free_at, held}: free_at is when hold_at_least is over, now if it is not running; held is for how long the lock
--     was held, -1 to a repeat
--   'lost', reason}: NOT_FOUND, TAKEN_OVER, LEASE_OVER, FORCED
--   'late'}

local token = ARGV[4]
local h = holder_of(token)
local reason, letter = spent(token, h)

if letter == 'R' then
  local running = h and h[RELEASED] == 1 and now < h[HOLD_UNTIL]
  return {now, 'released', running and h[HOLD_UNTIL] or now, -1}
end
if letter == 'U' then return {now, 'lost', 'NOT_FOUND'} end

-- A release that comes after the lease ended still ends the lock_delay that it left behind.
local delay_running = h and h[RELEASED] == 0 and now < h[LEASE_END] + h[DELAY]
if reason and not delay_running then return {now, 'lost', reason} end

if not delay_running and not is_live(h) then
  spend(token, 'U', now + memory)
  local w = waiter_of(token)
  if w then
    local was_first = first_waiter() == token
    leave_queue(token)
    -- Its call is told that the token is spent.
    tell_service(w[SERVICE], 'turn', KEYS[2], token, '0')
    if was_first then wake_next() end
  end
  keep()
  return {now, 'lost', 'NOT_FOUND'}
end

spend(token, 'R', now + memory)
if now < h[HOLD_UNTIL] then
  h[RELEASED], h[NONCE] = 1, ''
  put(token, h)
else
  remove(token)
end
wake_next()
keep()
return {now, 'released', math.max(now, h[HOLD_UNTIL]), held_for(h)}
