-- What an operator sees of a resource.
--   KEYS[1] holders, KEYS[2] ends, KEYS[3] limits, KEYS[4] spent, KEYS[5] live, KEYS[6] queue, KEYS[7] waiters, KEYS[8] deadlines
--   ARGV[4] how many holders to list at most
-- Returns after {now,
--   'lock', fence, queue_length, free_at, {holder, fence, mode, acquired_at, lease_end, ...}}: free_at is when the last of those
--     that count ends, 0 while there is a live holder
--   'free'}: nobody holds it or waits for it, and nothing keeps it taken
--   'late'}

local queue_length = waiting()
if queue_length == 0 and counting() == 0 then return {now, 'free'} end
local holders = live_holders(tonumber(ARGV[4]))
local fence = tonumber(redis.call('HGET', SPENT, LAST_FENCE) or 0)
return {now, 'lock', fence, queue_length, #holders == 0 and last_end() or 0, holders}
