-- One string: a MessagePack array of the fields in their order, which the script turns into a table by name.
if ARGV[1] == 'write' then
  local r, values = completed(), {}
  for i = 1, #NAMES do values[i] = r[NAMES[i]] end
  redis.call('SET', KEYS[1], cmsgpack.pack(values), 'PXAT', until_ms)
  return 1
end
local values, r = cmsgpack.unpack(redis.call('GET', KEYS[1])), {}
for i = 1, #NAMES do r[NAMES[i]] = values[i] end
return r.response
