-- One server of a stream. ARGV: epoch, time, incarnation, holder (a word of its own), milliseconds that it holds the stream from now on,
-- a step of its store that the queues know of from now on, or nothing, `anyway` where a later incarnation does not matter, and the run
-- of this server that they were brought to that step in: if it was started again since, they may have been set back, and know of none.
-- Returns {OK, the last step that was committed, the last that was released, this run}; {RUNNING, incarnation, milliseconds that are left} while
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
local run = run_id()
if ARGV[6] ~= '' and (ARGV[8] == '' or ARGV[8] == run) then
  if tonumber(ARGV[6]) > tonumber(m[4] or '0') then
    redis.call('HSET', KEYS[1], 'step', ARGV[6])
    m[4] = ARGV[6]
  end
  if ARGV[8] ~= '' then redis.call('HSET', KEYS[1], 'run', run) end
end
return {'OK', m[4] or '0', m[5] or '0', run}
