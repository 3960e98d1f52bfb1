#!lua flags=allow-oom
-- Looks whether a claim in flight still is, for all calls of a service that wait for it to end, and has the service told when it
-- ends. One script, because it must not end between the two unseen. Runs while memory is short, so that those that wait still do.
--   KEYS[1] record, KEYS[2] response
--   ARGV[4] service
-- Returns after {now,
--   'in_flight', lease_end}: and the service is told if it ends before that
--   'ended'}: whoever claims the key gets another answer than in_flight
--   'late'}

local r, state = load()
if state ~= IN_FLIGHT or now >= r[LEASE_END] then return {now, 'ended'} end
if watch(r, ARGV[4]) then save(r) end
return {now, 'in_flight', r[LEASE_END]}
