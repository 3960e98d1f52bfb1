-- One string: a MessagePack array, and the script works on that array with named indexes. This is the
-- layout in use.
if ARGV[1] == 'write' then
  local r = {
    2, '8f6b2c1e-0d3a-4b5f-9a77-1c2d3e4f5a6b', now, 1, 1, 86400000000, 30000000, now + 30000000, now, now, now,
    now + 86400000000, string.rep('f', 33), 'POST /v1/charges', 'payments-7c9d8b6f5-x2x4z', 0, '', 0, '', '', 1,
    string.rep('r', 200), now + 86400000000, 201, 200, string.rep('d', 32), '', '', {},
  }
  redis.call('SET', KEYS[1], cmsgpack.pack(r), 'PXAT', until_ms)
  return 1
end
local RESPONSE = 22
return cmsgpack.unpack(redis.call('GET', KEYS[1]))[RESPONSE]
