-- Settings of one queue, which is made where there is none. ARGV: epoch, time, queue, names and values. Returns OK, EPOCH, NO_STREAM.
local wrong = refused()
if wrong then return wrong end
local queue, c = ARGV[3], key('c', ARGV[3])
if redis.call('EXISTS', c) == 0 then
  redis.call('HSET', c, 'most', 100000, 'weight', 1, 'priority', 0, 'flush', 0, 'least', 1, 'state', 'open', 'time', 0)
  redis.call('HSET', c, 'pushed', 0, 'applied', 0, 'leased', 0, 'submitted', 0, 'dead', 0, 'purged', 0)
end
for number = 4, #ARGV, 2 do redis.call('HSET', c, ARGV[number], ARGV[number + 1]) end
line_up(queue, redis.call('LLEN', key('q', queue)), now())
return 'OK'
