"""Scripts that a Valkey or Redis server runs for `ValkeyLog`; the server runs each one atomically.

KEYS: the state, the stream of entries, the pen.
"""

MAKE = """
-- ARGV: epoch, seq, chain
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('DEL', KEYS[2], KEYS[3])
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'seq', ARGV[2], 'chain', ARGV[3])
return 1
"""

APPEND = """
-- ARGV: epoch, host, base, last, start, upto, body, keep
local said = 'said:' .. ARGV[2]
local state = redis.call('HMGET', KEYS[1], 'epoch', 'seq', 'chain', said)
if state[1] ~= ARGV[1] then return 'epoch' end
local pen = redis.call('GET', KEYS[3])
if pen and pen ~= ARGV[2] then return 'pen' end
local base, last, seq = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(state[2])
if base > seq then return 'behind' end
if tonumber(ARGV[5]) < tonumber(state[4] or '0') then return 'said' end
if base < seq then return 'stale' end
local chain = redis.sha1hex(state[3] .. ARGV[7])
redis.call('XADD', KEYS[2], ARGV[4] .. '-0', 'host', ARGV[2], 'upto', ARGV[6],
           'first', string.format('%.0f', base + 1), 'chain', chain, 'body', ARGV[7])
redis.call('HSET', KEYS[1], 'seq', ARGV[4], 'chain', chain, said, ARGV[6])
local oldest = last - tonumber(ARGV[8])
if oldest > 0 then
  redis.call('XTRIM', KEYS[2], 'MINID', '~', string.format('%.0f-1', oldest))
end
return 'appended'
"""

TAKE_PEN = """
-- ARGV: host, milliseconds
local pen = redis.call('GET', KEYS[3])
if pen and pen ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
return 1
"""

GIVE_PEN = """
-- ARGV: host
if redis.call('GET', KEYS[3]) == ARGV[1] then redis.call('DEL', KEYS[3]) end
return 1
"""
