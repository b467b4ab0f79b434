-- The batch comes back at once. ARGV: epoch, time, batch, attempt, reason, and `fail` where it counts against the batch, `redo` where not.
-- After too many failures it is put aside with its reason. Returns OK, DUPLICATE, FENCED, GONE, EPOCH.
local wrong = refused()
if wrong then return wrong end
although_full()
local status, place, counter = held(ARGV[3], ARGV[4])
if status ~= 'OK' then return status end
if place == 'submitted' then
  redis.call('ZREM', key('submitted'), ARGV[3])
  count(ARGV[3], 'submitted', 'leased')
end
redis.call('HSET', key('b', ARGV[3]), 'reason', ARGV[5], 'returned', '1')  -- nobody may speak for it until it is handed out again
if ARGV[6] == 'fail' then
  local fails = redis.call('HINCRBY', key('b', ARGV[3]), 'fails', 1)
  if fails >= tonumber(redis.call('HGET', KEYS[1], 'attempts')) then
    redis.call('ZREM', key('lease'), ARGV[3])
    bury(ARGV[3], ARGV[5], 'leased')
    return 'OK'
  end
end
redis.call('ZADD', key('lease'), 0, ARGV[3])
ring('back')
return 'OK'
