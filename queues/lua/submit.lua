-- The store has the batch's gradient, whole: from now on the store answers for it, not a lease. ARGV: epoch, time, batch, attempt.
local wrong = refused()
if wrong then return wrong end
local status, place = held(ARGV[3], ARGV[4])
if status == 'OK' and place == 'lease' then
  redis.call('ZREM', key('lease'), ARGV[3])
  redis.call('ZADD', key('submitted'), redis.call('HINCRBY', KEYS[1], 'submissions', 1), ARGV[3])
  redis.call('HSET', key('b', ARGV[3]), 'sent', whole(now()))
  count(ARGV[3], 'leased', 'submitted')
  ring('submitted')
end
return status
