#!lua flags=allow-oom
-- Takes a lock away from its holders, for an operator; hold_at_least and lock_delay end too. One script for some hundreds of
-- holders at a time, so that none of them renews in between and Redis is not held up. Runs while memory is short: it frees
-- some.
--   KEYS[1] holders, KEYS[2] ends, KEYS[3] limits, KEYS[4] spent, KEYS[5] live, KEYS[6] queue, KEYS[7] waiters, KEYS[8] deadlines
--   ARGV[4] fencing token of the one holder; '0' for all
--   ARGV[5] cursor: '0' at first, then what the last call returned
--   ARGV[6] those that were granted a higher fencing token stay: '0' at first, then what the last call returned
-- Returns after {now,
--   'released', cursor, newest, how many were live, {holder, fence, mode, acquired_at, lease_end, ...}, {held, ...}}: all that
--     ended, also those that only counted; cursor '0' at the end; for how long each lease held the lock that ended here
--   'late'}

local AT_ONCE = 500

local wanted, newest = tonumber(ARGV[4]), tonumber(ARGV[6])
if newest == 0 then newest = tonumber(redis.call('HGET', SPENT, LAST_FENCE) or 2^53 - 1) end
local cleared, held = clear_ended()
local step = redis.call('HSCAN', HOLDERS, ARGV[5], 'COUNT', AT_ONCE)
local cursor, entries = step[1], step[2]
local live, ended, forced = 0, {}, {}
for i = 1, #entries, 2 do
  local token, h = entries[i], cmsgpack.unpack(entries[i + 1])
  local meant = h[FENCE] <= newest and (wanted == 0 or h[FENCE] == wanted)
  if meant and now < counts_until(h) then
    if is_live(h) then live = live + 1 end
    tell(ended, h)
    remove(token)
    if h[RELEASED] == 0 then
      forced[#forced + 1] = {token, h[FENCE]}
      held[#held + 1] = held_for(h)
      tell_lost(h[OWNER] or '', KEYS[2], token, 'FORCED')
    end
  end
end
-- Of any number only the newest are remembered, so that only those are written down.
table.sort(forced, function(a, b) return a[2] > b[2] end)
for i = 1, math.min(#forced, SPENT_GRANTED) do spend(forced[i][1], 'F', now + memory) end
tell_ended()
if #ended > 0 then wake_next() end
if #ended > 0 or cleared > 0 then keep() end
return {now, 'released', cursor, newest, live, ended, held}
