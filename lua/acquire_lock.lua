-- Acquires a lock. One script, because between the look at the holders and the grant nobody else may be granted it.
--   KEYS[1] holders, KEYS[2] ends, KEYS[3] limits, KEYS[4] spent, KEYS[5] live
--   ARGV[4] token      ARGV[5] nonce of the call   ARGV[6] holder   ARGV[7] lease, ms   ARGV[8] mode: EXCLUSIVE or SHARED
--   ARGV[9] max_holders, 0 for none                ARGV[10] hold_at_least, ms           ARGV[11] lock_delay, ms
-- Returns after {now,
--   'acquired', already_held, fence, lease_end, {held, ...}}: the token holds the lock
--   'held', queue_length, changes_at, {holder, fence, mode, acquired_at, lease_end, ...}, {held, ...}}: others hold it, at most
--     ten of them listed
--   'lost', reason}: the token is spent: RELEASED, TAKEN_OVER, LEASE_OVER, FORCED
--   'other_mode'}: the token holds the lock in another mode
--   'late'}
-- The last element says for how long each lease held the lock that was found to be over here.

local token, nonce, lease, mode, max_holders = ARGV[4], ARGV[5], ARGV[7] * 1000, ARGV[8], tonumber(ARGV[9])

local h = holder_of(token)
local reason = spent(token, h)
if reason then return {now, 'lost', reason} end

if is_live(h) then
  if h[MODE] ~= mode then return {now, 'other_mode'} end
  -- The same nonce is the same call, sent again by the service after its connection broke.
  local same_call = h[NONCE] == nonce
  if not same_call then h[NONCE] = '' end
  h[LEASE_END] = math.max(h[LEASE_END], now + lease)
  put(token, h)
  keep()
  return {now, 'acquired', same_call and 0 or 1, h[FENCE], h[LEASE_END], {}}
end

local cleared, held = clear_ended()
local count, exclusive = counting()
local limit = 0
if mode ~= EXCLUSIVE then
  limit = smallest_limit()
  if max_holders > 0 and (limit == 0 or max_holders < limit) then limit = max_holders end
end
local free = count == 0 or (mode ~= EXCLUSIVE and not exclusive and (limit == 0 or count < limit))

if not free then
  if cleared > 0 then keep() end
  -- Without a release: an exclusive request has to outwait all, a shared one the first of those that count.
  local changes_at = last_end()
  if mode ~= EXCLUSIVE then
    changes_at = tonumber(redis.call('ZRANGEBYSCORE', ENDS, '(' .. text(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
  end
  return {now, 'held', 0, changes_at, live_holders(10), held}
end

local last = tonumber(redis.call('HGET', SPENT, LAST_FENCE) or 0)
-- None is no time at all, not now: a clock that is set back must not make one of it.
local hold_at_least = ARGV[10] * 1000
local granted = {
  mint(last), mode, now + lease, lease, now,
  hold_at_least > 0 and now + hold_at_least or 0, ARGV[11] * 1000, max_holders, 0, nonce, ARGV[6],
  last_grant(),
}
put(token, granted)
if max_holders > 0 then redis.call('ZADD', LIMITS, max_holders, token) end
redis.call('HSET', SPENT, LAST_FENCE, text(granted[FENCE]), LAST_GRANT, text(now))
keep()
return {now, 'acquired', 0, granted[FENCE], granted[LEASE_END], held}
