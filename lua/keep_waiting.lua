#!lua flags=allow-oom
-- Speaks for all waiters that a service has for one resource, and tells it whose turn it is. One script, because a waiter that
-- Redis lost gets its old place back only while its token neither holds the lock nor is spent. Runs while memory is short:
-- it keeps places that were given.
--   KEYS[1] holders, KEYS[2] ends, KEYS[3] limits, KEYS[4] spent, KEYS[5] live, KEYS[6] queue, KEYS[7] waiters, KEYS[8] deadlines
--   ARGV[4] service   ARGV[5] 1 if Redis was away a moment ago, as far as the service can tell
--   then of each waiter: token, nonce of its call, ticket, mode, max_holders
-- Returns after {now,
--   'waiting', token, wait, {number, ...}, {token, ...}}: the first in the queue and for how many microseconds it has to wait
--     yet, '' where it is another service's; which of the waiters lost their place to a later call, the first being 1; those
--     to try again because their tokens are spent
--   'late'}

local service = ARGV[4]
local spoken_for, places, taken, over = {}, {}, {}, {}
for i = 6, #ARGV, 5 do
  local token, nonce = ARGV[i], ARGV[i + 1]
  local number = (i - 6) / 5 + 1
  local w = waiter_of(token)
  if w and w[CALL] == nonce then
    spoken_for[#spoken_for + 1] = text(now + SPOKEN_FOR)
    spoken_for[#spoken_for + 1] = token
    places[#places + 1] = ARGV[i + 2]
    places[#places + 1] = token
  elseif w then
    taken[#taken + 1] = number
  else
    local h = holder_of(token)
    if spent(token, h) then
      over[#over + 1] = token
    elseif not is_live(h) then
      stand_in_queue(token, tonumber(ARGV[i + 2]), {nonce, service, ARGV[i + 3], tonumber(ARGV[i + 4])})
    elseif h[NONCE] ~= nonce then
      taken[#taken + 1] = number
    end
  end
end
-- In bunches, for the stack of Lua's. The places too, since that key may be lost alone.
for i = 1, #spoken_for, 1000 do
  local last = math.min(i + 999, #spoken_for)
  redis.call('ZADD', DEADLINES, unpack(spoken_for, i, last))
  redis.call('ZADD', QUEUE, unpack(places, i, last))
end
drop_silent(ARGV[5] == '1')

local token, w, wait = next_in_turn()
keep()
if not token or w[SERVICE] ~= service then token, wait = '', 0 end
return {now, 'waiting', token, wait, taken, over}
