-- Acquires a lock, or waits in turn for it. One script, because between the look at the holders and the queue and the grant
-- nobody else may be granted it.
--   KEYS[1] holders, KEYS[2] ends, KEYS[3] limits, KEYS[4] spent, KEYS[5] live, KEYS[6] queue, KEYS[7] waiters, KEYS[8] deadlines
--   ARGV[4] token      ARGV[5] nonce of the call   ARGV[6] holder   ARGV[7] lease, ms   ARGV[8] mode: EXCLUSIVE or SHARED
--   ARGV[9] max_holders, 0 for none                ARGV[10] hold_at_least, ms           ARGV[11] lock_delay, ms
--   ARGV[12] 'no' to be answered at once; 'join' to wait in turn; 'last' to be answered at once and wait no longer
--   ARGV[13] the service that speaks for the waiter   ARGV[14] the ticket that it had; 0 for none
--   ARGV[15] 1 if Redis was away a moment ago, as far as the service can tell
-- Returns after {now,
--   'acquired', already_held, fence, lease_end, {held, ...}}: the token holds the lock
--   'held', queue_length, changes_at, {holder, fence, mode, acquired_at, lease_end, ...}, {held, ...}}: others hold it, at most
--     ten of them listed, or others wait for it
--   'queued', queue_length, changes_at, {...}, {held, ...}, ticket, 1 if it is the first}: the same, and the token waits in turn
--   'lost', reason}: the token is spent: RELEASED, TAKEN_OVER, LEASE_OVER, FORCED
--   'other_mode'}: the token holds the lock, or waits for it, in another mode
--   'late'}
-- The list of {held, ...} says for how long each lease held the lock that was found to be over here.

local token, nonce, lease, mode, max_holders = ARGV[4], ARGV[5], ARGV[7] * 1000, ARGV[8], tonumber(ARGV[9])
local how, service = ARGV[12], ARGV[13]
local UNKNOWN = 1000000

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

drop_silent(ARGV[15] == '1')
local w = waiter_of(token)
if w and w[WANTED_MODE] ~= mode then return {now, 'other_mode'} end
local cleared, held = clear_ended()
local first = head()

-- While others wait nobody goes past them. The later call of a token has its place: the earlier one gets nothing any more.
local lost_its_place = w and w[CALL] ~= nonce and (how == 'last' or ARGV[14] ~= '0')
local is_in_turn = not first or first == token
if lost_its_place or not (is_in_turn and is_free_for(mode, max_holders)) then
  local ticket
  local changed = cleared > 0
  if how == 'join' and not lost_its_place then
    ticket = tonumber(redis.call('ZSCORE', QUEUE, token) or ARGV[14])
    if ticket == 0 then ticket = new_ticket() end
    stand_in_queue(token, ticket, {nonce, service, mode, max_holders})
    -- The later call of a token takes its place over.
    if w and w[CALL] ~= nonce then tell_service(w[SERVICE], 'taken', KEYS[2], token, w[CALL]) end
    first = first_waiter()
    changed = true
  elseif how == 'last' and w and not lost_its_place then
    leave_queue(token)
    if first == token then wake_next() end
    changed = true
  end
  if changed then keep() end
  tell_ended()
  local is_first = ticket and first == token
  local changes = now
  if not is_free_for(mode, max_holders) then
    changes = changes_at(mode)
  elseif not is_first then
    -- It is on its way to the first in the queue, and nobody knows how long that will hold it.
    changes = now + UNKNOWN
  end
  local answer = {now, ticket and 'queued' or 'held', waiting(), changes, live_holders(10), held}
  if ticket then answer[7], answer[8] = ticket, is_first and 1 or 0 end
  return answer
end

local last = tonumber(redis.call('HGET', SPENT, LAST_FENCE) or 0)
-- None is no time at all, not now: a clock that is set back must not make one of it.
local hold_at_least = ARGV[10] * 1000
local granted = {
  mint(last), mode, now + lease, lease, now,
  hold_at_least > 0 and now + hold_at_least or 0, ARGV[11] * 1000, max_holders, 0, nonce, ARGV[6],
  last_grant(), '', 0,
}
put(token, granted)
if max_holders > 0 then redis.call('ZADD', LIMITS, max_holders, token) end
redis.call('HSET', SPENT, LAST_FENCE, text(granted[FENCE]), LAST_GRANT, text(now))
if w or first then leave_queue(token) end
if w and w[CALL] ~= nonce then tell_service(w[SERVICE], 'taken', KEYS[2], token, w[CALL]) end
find_ended()
tell_ended()
-- Readers in a row come in together, and whoever is the next for a writer has to know until when this one may hold it.
if first then wake_next() end
keep()
return {now, 'acquired', 0, granted[FENCE], granted[LEASE_END], held}
