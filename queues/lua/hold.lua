-- One server of a stream. ARGV: epoch, time, incarnation, holder (a word of its own), milliseconds that it holds the stream from now on,
-- a step of its store that the queues know of from now on, or nothing, and `anyway` where a later incarnation does not matter.
-- Returns {OK, the last step that was committed, the last that was released}; {RUNNING, incarnation, milliseconds that are left} while
-- another holds it; {NEWER, incarnation} where another, of a later incarnation or the same, did; or {EPOCH}, {NO_STREAM}.
local wrong = refused()
if wrong then return {wrong} end
although_full()
local at = now()
local m = redis.call('HMGET', KEYS[1], 'incarnation', 'holder', 'held', 'step', 'released')
local incarnation, left = tonumber(m[1] or '0'), tonumber(m[3] or '0') - at
if m[2] ~= ARGV[4] then
  if left > 0 then return {'RUNNING', whole(incarnation), whole(left)} end
  if tonumber(ARGV[3]) <= incarnation and ARGV[7] ~= 'anyway' then return {'NEWER', whole(incarnation)} end
end
redis.call('HSET', KEYS[1], 'incarnation', whole(math.max(incarnation, tonumber(ARGV[3]))), 'holder', ARGV[4], 'held', whole(at + tonumber(ARGV[5])))
if ARGV[6] ~= '' and tonumber(ARGV[6]) > tonumber(m[4] or '0') then
  redis.call('HSET', KEYS[1], 'step', ARGV[6])
  m[4] = ARGV[6]
end
return {'OK', m[4] or '0', m[5] or '0'}
