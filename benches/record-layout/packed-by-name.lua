-- One string: a MessagePack map with the fields' names.
if ARGV[1] == 'write' then
  redis.call('SET', KEYS[1], cmsgpack.pack(completed()), 'PXAT', until_ms)
  return 1
end
return cmsgpack.unpack(redis.call('GET', KEYS[1])).response
