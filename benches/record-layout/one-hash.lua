-- One hash, a field each; what is 0 or '' is left out.
if ARGV[1] == 'write' then
  local r, flat = completed(), {}
  for _, name in ipairs(NAMES) do
    local value = r[name]
    if type(value) == 'number' then value = text(value) end
    if type(value) == 'string' and value ~= '' and value ~= '0' then
      flat[#flat + 1] = name
      flat[#flat + 1] = value
    end
  end
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], unpack(flat))
  redis.call('PEXPIREAT', KEYS[1], until_ms)
  return 1
end
local flat, r = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #flat, 2 do r[flat[i]] = flat[i + 1] end
return r.response
