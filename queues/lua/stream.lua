-- Begin a stream, or find the one there is. ARGV: `*`, nothing, epoch, then names and values of `meta` to begin with.
-- Returns its format and epoch.
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'format', 1, 'epoch', ARGV[3], 'turn', 0, 'clock', 0, 'bytes', 0, 'submissions', 0)
  for number = 4, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[number], ARGV[number + 1]) end
end
return redis.call('HMGET', KEYS[1], 'format', 'epoch')
