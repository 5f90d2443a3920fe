"""Scripts that a Valkey or Redis server runs for `ValkeyLog`; the server runs each one atomically.

KEYS: the state, the stream of entries, the writer, the beats, the reports after a restart.

The server has a new run id after each restart: the log counts as settled if the state has the
current run id.
"""

_RUN = """
local function run() return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') end
local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end
"""

MAKE = f"""{_RUN}
-- ARGV: epoch, seq, chain, 1 if it is settled, level
if redis.call('HEXISTS', KEYS[1], 'epoch') == 1 then return 0 end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[5])
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'seq', ARGV[2], 'chain', ARGV[3],
           'run', ARGV[4] == '1' and run() or '', 'level', ARGV[5])
return 1
"""

CLEAR = """
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[5])
return 1
"""

RENEW = """
-- ARGV: epoch, seq, new epoch
local state = redis.call('HMGET', KEYS[1], 'epoch', 'seq')
if state[1] ~= ARGV[1] or state[2] ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'epoch', ARGV[3])
return 1
"""

HEAD = f"""{_RUN}
local state = redis.call('HMGET', KEYS[1], 'epoch', 'seq', 'chain', 'run', 'level')
if not state[1] then return nil end
return {{state[1], state[2], state[3], state[4] == run() and 1 or 0, state[5]}}
"""

APPEND = f"""{_RUN}
-- ARGV: epoch, host, base, last, start, upto, body, keep
local recorded = 'recorded:' .. ARGV[2]
local state = redis.call('HMGET', KEYS[1], 'epoch', 'seq', 'chain', recorded, 'run')
if state[1] ~= ARGV[1] then return 'epoch' end
if state[5] ~= run() then return 'unsettled' end
local writer = redis.call('GET', KEYS[3])
if writer and writer ~= ARGV[2] then return 'leased' end
local base, last, seq = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(state[2])
if base > seq then return 'behind' end
if tonumber(ARGV[5]) < tonumber(state[4] or '0') then return 'recorded' end
if base < seq then return 'stale' end
local chain = redis.sha1hex(state[3] .. ARGV[7])
redis.call('XADD', KEYS[2], ARGV[4] .. '-0', 'host', ARGV[2], 'upto', ARGV[6],
           'first', string.format('%.0f', base + 1), 'chain', chain, 'body', ARGV[7])
redis.call('HSET', KEYS[1], 'seq', ARGV[4], 'chain', chain, recorded, ARGV[6])
local oldest = last - tonumber(ARGV[8])
if oldest > 0 then
  redis.call('XTRIM', KEYS[2], 'MINID', '~', string.format('%.0f-1', oldest))
end
return 'appended'
"""

RESTORE = """
-- ARGV: epoch, chain before, host, upto, first, last, chain, body
local recorded = 'recorded:' .. ARGV[3]
local state = redis.call('HMGET', KEYS[1], 'epoch', 'seq', 'chain', recorded)
if state[1] ~= ARGV[1] or state[3] ~= ARGV[2] then return 0 end
if tonumber(state[2]) + 1 ~= tonumber(ARGV[5]) then return 0 end
redis.call('XADD', KEYS[2], ARGV[6] .. '-0', 'host', ARGV[3], 'upto', ARGV[4],
           'first', ARGV[5], 'chain', ARGV[7], 'body', ARGV[8])
redis.call('HSET', KEYS[1], 'seq', ARGV[6], 'chain', ARGV[7])
if tonumber(ARGV[4]) > tonumber(state[4] or '0') then
  redis.call('HSET', KEYS[1], recorded, ARGV[4])
end
return 1
"""

SETTLE = f"""{_RUN}
-- ARGV: host, seq, seconds to wait, seconds that a report counts, seconds that a beat counts
local state = redis.call('HMGET', KEYS[1], 'seq', 'run')
local run, now = run(), now()
if not state[1] then return 0 end
if state[2] == run then return 1 end
if redis.call('HGET', KEYS[5], 'run') ~= run then
  redis.call('DEL', KEYS[5])
  redis.call('HSET', KEYS[5], 'run', run, 'since', string.format('%.6f', now))
end
redis.call('HSET', KEYS[5], 'at:' .. ARGV[1], string.format('%s %.6f', ARGV[2], now))
local most, all = 0, true
local function report(host)
  local found = redis.call('HGET', KEYS[5], 'at:' .. host)
  local seq, at = string.match(found or '', '(%S+) (%S+)')
  return tonumber(seq), at and now - tonumber(at) <= tonumber(ARGV[4])
end
local fields = redis.call('HKEYS', KEYS[5])
for _, field in ipairs(fields) do
  if string.sub(field, 1, 3) == 'at:' then
    local seq, fresh = report(string.sub(field, 4))
    if fresh and seq > most then most = seq end
  end
end
local beats = redis.call('HGETALL', KEYS[4])
for index = 1, #beats, 2 do
  local at = tonumber(string.match(beats[index + 1], '%S+'))
  local _, fresh = report(beats[index])
  if now - at <= tonumber(ARGV[5]) and not fresh then all = false end
end
local since = tonumber(redis.call('HGET', KEYS[5], 'since'))
if most > tonumber(state[1]) then return 0 end
if not all and now - since < tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], 'run', run)
redis.call('DEL', KEYS[5])
return 1
"""

BEAT = f"""{_RUN}
-- ARGV: host, ident, facts (seq first), seconds that a beat is fresh, seconds that it keeps entries
local now = now()
local old = redis.call('HGET', KEYS[4], ARGV[1])
local at, ident = string.match(old or '', '(%S+) (%S+)')
if at and ident ~= ARGV[2] and now - tonumber(at) < tonumber(ARGV[4]) then return 'twin' end
redis.call('HSET', KEYS[4], ARGV[1], string.format('%.6f %s %s', now, ARGV[2], ARGV[3]))
local beats = redis.call('HGETALL', KEYS[4])
local lowest = tonumber(redis.call('HGET', KEYS[1], 'snapshot') or '0')
for index = 1, #beats, 2 do
  local at, seq = string.match(beats[index + 1], '(%S+) %S+ (%S+)')
  if now - tonumber(at) <= tonumber(ARGV[5]) then lowest = math.min(lowest, tonumber(seq)) end
end
if lowest > 0 then
  redis.call('XTRIM', KEYS[2], 'MINID', '~', string.format('%.0f-1', lowest))
end
return string.format('%.0f', now * 1000000)
"""

BEATS = f"""{_RUN}
local now, found = now(), {{}}
local beats = redis.call('HGETALL', KEYS[4])
for index = 1, #beats, 2 do
  local at, ident, facts = string.match(beats[index + 1], '(%S+) (%S+) (.*)')
  found[#found + 1] = {{beats[index], ident, facts, tostring(now - tonumber(at))}}
end
return found
"""

TAKE_WRITE_LEASE = """
-- ARGV: host, milliseconds
local writer = redis.call('GET', KEYS[3])
if writer and writer ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
return 1
"""

GIVE_WRITE_LEASE = """
-- ARGV: host
if redis.call('GET', KEYS[3]) == ARGV[1] then redis.call('DEL', KEYS[3]) end
return 1
"""

PUT = """
-- KEYS: a list of questions or answers; ARGV: what to add, seconds until the list is dropped
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""

LEVEL = """
-- ARGV: level
if redis.call('HEXISTS', KEYS[1], 'epoch') == 1 then
  redis.call('HSET', KEYS[1], 'level', ARGV[1])
end
return 1
"""
