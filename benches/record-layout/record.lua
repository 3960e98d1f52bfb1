-- A completed claim as all layouts store it: 29 fields and a response of 200 bytes.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
local NAMES = {
  'state', 'token', 'fence', 'attempt', 'policy', 'retention', 'lease', 'lease_end', 'claimed_at', 'renewed_at',
  'ended_at', 'expires_at', 'fingerprint', 'operation', 'holder', 'taken_over', 'checkpoint', 'sequence', 'nonce',
  'before', 'response_kind', 'response', 'response_until', 'response_status', 'response_bytes', 'digest',
  'abandon_reason', 'trace_id', 'spent',
}
local function completed()
  return {
    state = 2, token = '8f6b2c1e-0d3a-4b5f-9a77-1c2d3e4f5a6b', fence = now, attempt = 1, policy = 1,
    retention = 86400000000, lease = 30000000, lease_end = now + 30000000, claimed_at = now, renewed_at = now,
    ended_at = now, expires_at = now + 86400000000, fingerprint = string.rep('f', 33),
    operation = 'POST /v1/charges', holder = 'payments-7c9d8b6f5-x2x4z', taken_over = 0, checkpoint = '', sequence = 0,
    nonce = '', before = '', response_kind = 1, response = string.rep('r', 200), response_until = now + 86400000000,
    response_status = 201, response_bytes = 200, digest = string.rep('d', 32), abandon_reason = '', trace_id = '', spent = {},
  }
end
local until_ms = text(math.ceil((now + 86400000000) / 1000))
