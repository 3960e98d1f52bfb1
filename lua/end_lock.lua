#!lua flags=allow-oom
-- Ends the lease on a lock whose stream ended: lock_delay runs from now, hold_at_least goes on. One script, because the lease
-- must still be that stream's: one that was opened since may keep it alive. Runs while memory is short: it frees some.
--   KEYS[1] holders, KEYS[2] ends, KEYS[3] limits, KEYS[4] spent, KEYS[5] live, KEYS[6] queue, KEYS[7] waiters, KEYS[8] deadlines
--   ARGV[4] token   ARGV[5] the stream
-- Returns after {now,
--   'ended'}
--   'kept'}: the lease is not that stream's, or is over already
--   'late'}

local token = ARGV[4]
local h = holder_of(token)
if not is_live(h) or h[OWNER] ~= ARGV[5] then return {now, 'kept'} end

h[LEASE_END], h[OWNER] = now, ''
put(token, h)
wake_next()
keep()
return {now, 'ended'}
