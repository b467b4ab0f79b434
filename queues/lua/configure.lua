-- Settings of one queue, which is made where there is none. ARGV: epoch, time, queue, names and values. Returns OK, EPOCH, NO_STREAM.
local wrong = refused()
if wrong then return wrong end
although_full()
local queue, c, at = ARGV[3], key('c', ARGV[3]), now()
if redis.call('EXISTS', c) == 0 then
  redis.call('HSET', c, 'most', 100000, 'weight', 1, 'priority', 0, 'flush', 0, 'least', 1, 'out', 0, 'state', 'open', 'time', 0)
  redis.call('HSET', c, 'pushed', 0, 'applied', 0, 'leased', 0, 'submitted', 0, 'dead', 0, 'purged', 0, 'away', 0)
  redis.call('SADD', key('queues'), queue)
end
local before = tonumber(redis.call('HGET', c, 'priority'))
for number = 4, #ARGV, 2 do redis.call('HSET', c, ARGV[number], ARGV[number + 1]) end

-- Who waits for its turn already is moved by what its priority changed.
local raised = tonumber(redis.call('HGET', c, 'priority')) - before
if raised ~= 0 and redis.call('ZSCORE', key('ready'), queue) then
  local m = redis.call('HMGET', KEYS[1], 'policy', 'aging')
  if m[1] == 'priority' then redis.call('ZINCRBY', key('ready'), whole(0 - raised * tonumber(m[2])), queue) end
end
line_up(queue, redis.call('LLEN', key('q', queue)), at)

-- Batches that came back while the queue gave none: see `claim`.
local state = redis.call('HGET', c, 'state')
if state == 'open' or state == 'draining' then
  for _, batch in ipairs(redis.call('ZRANGEBYSCORE', key('lease'), '+inf', '+inf')) do
    if redis.call('HGET', key('b', batch), 'queue') == queue then
      redis.call('ZADD', key('lease'), 0, batch)
      ring('back')
    end
  end
end
return 'OK'
