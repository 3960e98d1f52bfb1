-- Put in front of every script. Every script takes
--   ARGV[1] not_after     microseconds on Redis's clock past which the call does nothing
--   ARGV[2] highest_seen  the highest fencing token that the calling service has seen
--   ARGV[3] memory        milliseconds for which tokens are remembered after their grant ended
-- and returns {now, kind, ...}: now in microseconds on Redis's clock, kind a word. The kind 'late' means
-- that not_after had passed and that nothing was done. Times are whole microseconds, which a Lua number
-- holds exactly up to 2^53, the year 2255; they turn into text only through `text`, since tostring()
-- would round them.

local function text(number) return string.format('%.0f', number) end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- A command that lay in a stopped server or in a full socket must grant nothing when it is read at last:
-- its caller was told that the store could not be asked.
if now > tonumber(ARGV[1]) then return {now, 'late'} end

local memory = tonumber(ARGV[3]) * 1000

-- The next fencing token. Redis's clock keeps it growing where the record of the last one is gone, and
-- what the service has seen keeps it growing where that clock was set back.
local function mint(last)
  return math.max(last + 1, now, tonumber(ARGV[2]) + 1)
end

local function expire_at(key, microseconds)
  redis.call('PEXPIREAT', key, text(math.ceil(microseconds / 1000)))
end

local CHANNEL = 'cl:w:'

-- Tells a service something, as words divided by spaces. What a script did must not depend on whether it may.
local function tell_service(service, ...)
  redis.pcall('PUBLISH', CHANNEL .. service, table.concat({...}, ' '))
end

-- A lease belongs to the stream that asked for it last, its owner: '<service>.<number of the stream>', or '' for none. That
-- one alone is told of its loss, and may end it. `at` is where a record has its owner, and next to that when it asked: the
-- stream's estimate of the time here. So one that asked earlier and is heard later takes nothing away. A time to come says
-- nothing: the clock was set back since.

local function asked_later(record, at, stamp) return stamp > record[at + 1] or now < record[at + 1] end

local function own(record, at, owner, stamp)
  if owner ~= '' and asked_later(record, at, stamp) then record[at], record[at + 1] = owner, stamp end
end

local function disown(record, at, owner, stamp)
  if not asked_later(record, at, stamp) then return end
  if record[at] == owner then record[at] = '' end
  record[at + 1] = stamp
end

local function tell_lost(owner, key, token, reason)
  local service, stream = string.match(owner, '^(%w+)%.(%d+)$')
  if service then tell_service(service, 'lost', stream, key, token, reason) end
end
