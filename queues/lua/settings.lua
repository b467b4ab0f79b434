-- Settings that all queues share. ARGV: epoch, time, names and values of `meta`. Returns OK, EPOCH, NO_STREAM.
local wrong = refused()
if wrong then return wrong end
although_full()
local before = redis.call('HMGET', KEYS[1], 'policy', 'aging')
for number = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[number], ARGV[number + 1]) end
local after = redis.call('HMGET', KEYS[1], 'policy', 'aging')
if before[1] ~= after[1] or before[2] ~= after[2] then
  -- Turns of two policies cannot be compared: who is in line lines up anew, in the order in which they stood.
  local line, at = redis.call('ZRANGE', key('ready'), 0, -1), now()
  redis.call('DEL', key('ready'))
  for _, queue in ipairs(line) do line_up(queue, redis.call('LLEN', key('q', queue)), at) end
end
return 'OK'
