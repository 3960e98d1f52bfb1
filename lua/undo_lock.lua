#!lua flags=allow-oom
-- Takes back a grant whose caller went away before it was told, and its place in the queue. One script, because a repeat
-- with the same token may be answered at any moment, and what it got must stand. The token is not spent. Runs while memory
-- is short: it frees some.
--   KEYS[1] holders, KEYS[2] ends, KEYS[3] limits, KEYS[4] spent, KEYS[5] live, KEYS[6] queue, KEYS[7] waiters, KEYS[8] deadlines
--   ARGV[4] token   ARGV[5] nonce of the call that created the grant, or waits
-- Returns after {now,
--   'undone'}: with its hold_at_least and lock_delay; only the fencing token stays used
--   'kept'}: neither the grant nor the place is that call's, or somebody has heard of the grant
--   'late'}

local token, nonce = ARGV[4], ARGV[5]
local w = waiter_of(token)
if w and w[CALL] == nonce then
  local was_first = first_waiter() == token
  leave_queue(token)
  if was_first then wake_next() end
  keep()
  return {now, 'undone'}
end

local h = holder_of(token)
if not h or h[NONCE] ~= nonce or h[RELEASED] == 1 then return {now, 'kept'} end
remove(token)
-- Nobody was taken over by it. Where somebody acquired the lock since, that one did: if it is undone as well, it still did.
if last_grant() == h[ACQUIRED_AT] then redis.call('HSET', SPENT, LAST_GRANT, text(h[GRANTED_BEFORE])) end
wake_next()
keep()
return {now, 'undone'}
