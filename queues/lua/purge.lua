-- Give up samples: dead batches, or what waits. ARGV: epoch, time, queue, `dead` or `waiting`, batches... (of the dead; none: all).
-- Returns how many samples, or UNKNOWN, EPOCH, NO_STREAM.
local wrong = refused(ARGV[3])
if wrong then return wrong end
local queue, gone = ARGV[3], 0
if ARGV[4] == 'waiting' then
  gone = redis.call('LLEN', key('q', queue))
  local bytes = 0
  for first = 0, gone - 1, 1000 do
    for _, sample in ipairs(redis.call('LRANGE', key('q', queue), first, first + 999)) do bytes = bytes + #sample end
  end
  redis.call('DEL', key('q', queue))
  redis.call('HINCRBY', KEYS[1], 'bytes', 0 - bytes)  -- -0 is no number to a server
  redis.call('HINCRBY', key('c', queue), 'purged', gone)
  line_up(queue, 0, now())
  return gone
end
local asked = {}
for number = 5, #ARGV do asked[ARGV[number]] = true end
for _, batch in ipairs(redis.call('LRANGE', key('dead', queue), 0, -1)) do
  if #ARGV == 4 or asked[batch] then
    redis.call('LREM', key('dead', queue), 1, batch)
    gone = gone + tonumber(redis.call('HGET', key('b', batch), 'count'))
    count(batch, 'dead', 'purged')
    forget(batch)
  end
end
return gone
