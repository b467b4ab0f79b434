-- Batches that were put aside. ARGV: epoch, time, queue, how many at most. Returns {batch, attempt, reason, samples...} each, oldest first;
-- or UNKNOWN, EPOCH, NO_STREAM.
local wrong = refused(ARGV[3])
if wrong then return wrong end
local found = {}
for _, batch in ipairs(redis.call('LRANGE', key('dead', ARGV[3]), 0, tonumber(ARGV[4]) - 1)) do
  local b = redis.call('HMGET', key('b', batch), 'attempt', 'reason')
  local one = {batch, b[1], b[2]}
  for _, sample in ipairs(redis.call('LRANGE', key('s', batch), 0, -1)) do one[#one + 1] = sample end
  found[#found + 1] = one
end
return found
