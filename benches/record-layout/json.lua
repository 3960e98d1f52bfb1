-- One string: JSON.
if ARGV[1] == 'write' then
  redis.call('SET', KEYS[1], cjson.encode(completed()), 'PXAT', until_ms)
  return 1
end
return cjson.decode(redis.call('GET', KEYS[1])).response
