-- What an operator sees of a key.
--   KEYS[1] record, KEYS[2] response
-- Returns after {now,
--   'claim', {state, operation, attempt, fence, holder, policy, claimed_at, renewed_at, completed_at, lease_end,
--             expires_at, response_status, response_bytes, checkpoint_bytes, taken_over, abandon_reason, trace_id}}
--   'claim', {''}}: the key is not known
--   'late'}

return {now, 'claim', describe(load())}
