#!lua flags=allow-oom
-- Takes a lock away from its holders, for an operator; hold_at_least and lock_delay end too. One script, so that none
-- renews in between. Runs while memory is short: it frees some.
--   KEYS[1] holders, KEYS[2] ends, KEYS[3] limits, KEYS[4] spent
--   ARGV[4] fencing token of the one holder; '0' for all
-- Returns after {now,
--   'released', how many were live, {holder, fence, mode, acquired_at, lease_end, ...}}: all that ended, also those that only counted
--   'late'}

local wanted = tonumber(ARGV[4])
local cleared = clear_ended()
local live, ended, forced = 0, {}, {}
for _, token in ipairs(redis.call('HKEYS', HOLDERS)) do
  local h = holder_of(token)
  if (wanted == 0 or h[FENCE] == wanted) and now < counts_until(h) then
    if is_live(h) then live = live + 1 end
    for _, value in ipairs({h[HOLDER], h[FENCE], h[MODE], h[ACQUIRED_AT], h[LEASE_END]}) do ended[#ended + 1] = value end
    remove(token)
    if h[RELEASED] == 0 then forced[#forced + 1] = {token, h[FENCE]} end
  end
end
-- Of any number only the newest are remembered, so that only those are written down.
table.sort(forced, function(a, b) return a[2] > b[2] end)
for i = 1, math.min(#forced, SPENT_GRANTED) do spend(forced[i][1], 'F', now + memory) end
if #ended > 0 or cleared > 0 then keep() end
return {now, 'released', live, ended}
