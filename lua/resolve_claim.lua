-- Settles a claim whose holder no longer does, for an operator. One script, because the claim must be the one
-- that was looked at, and its lease must not be live.
--   KEYS[1] record, KEYS[2] response
--   ARGV[4] fencing token of the grant that was looked at
--   ARGV[5] 'complete', 'forget' or 'erase_response'
--   with 'complete': ARGV[6] digest   ARGV[7] 1 if there is a response   ARGV[8] response   ARGV[9] its status   ARGV[10] the bytes of its body
-- Returns after {now,
--   'resolved', before, after}: each as get_claim describes a key
--   'left', as it is}: it has moved on, its lease is live, or there is nothing to do that to
--   'late'}

local fence, resolution = tonumber(ARGV[4]), ARGV[5]

local r, state = load()
local left = state == NONE or r[FENCE] ~= fence
  or (state == IN_FLIGHT and now < r[LEASE_END])
  or (resolution == 'erase_response' and state ~= COMPLETED)
if left then return {now, 'left', describe(r, state)} end

local before = describe(r, state)
if resolution == 'erase_response' then
  drop_response(r)
else
  local remembered = now + memory
  if resolution == 'forget' then remembered = math.max(remembered, r[EXPIRES_AT]) end
  spend(r, r[TOKEN], 'FORCED', remembered, GRANTED)
  if state == IN_FLIGHT then tell_lost(r[OWNER], KEYS[1], r[TOKEN], 'FORCED') end
  r[TOKEN] = ''
  heard(r)
  if resolution == 'complete' then
    local response
    if ARGV[7] == '1' then
      response = {bytes = ARGV[8], status = tonumber(ARGV[9]), size = tonumber(ARGV[10])}
    end
    complete(r, r[RETENTION], response, ARGV[6])
  else
    tell_of_end(r)
    drop_response(r)
    -- While anything is known of the key no receipt counts, and this is known for as long as any is good.
    spend(r, FORGET_MARK, 'FORCED', math.max(remembered, r[RECEIPTS_UNTIL]), FORGOTTEN)
    local forgotten = blank()
    forgotten[LAST_FENCE], forgotten[LEASE_END], forgotten[SPENT] = r[LAST_FENCE], now, r[SPENT]
    r = forgotten
  end
end
save(r)
return {now, 'resolved', before, describe(r, r[STATE])}
