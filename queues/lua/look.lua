-- What there is to do for the server of the stream. ARGV: epoch, time, how many submitted batches at most, and `each` where only the
-- first of each queue is asked for, else `all`.
-- Returns {last step that was committed, or -1 where this server was started again since it was held with a step, batches that could be claimed now, then for each submitted batch, in the order in which the
-- store got their gradients: {batch, queue, attempt, worker, milliseconds since then, samples as they lay in the queue...}};
-- or {EPOCH}, {HELD}, {NO_STREAM}.
local wrong = refused()
if wrong then return {wrong} end
local at = now()
local free = redis.call('ZCARD', key('ready')) + redis.call('ZCOUNT', key('due'), '-inf', whole(at))
free = free + redis.call('ZCOUNT', key('lease'), '-inf', whole(at))
local found = {restarted() and '-1' or redis.call('HGET', KEYS[1], 'step') or '0', whole(free)}
local seen, bytes, told = {}, 0, 0
for _, batch in ipairs(redis.call('ZRANGE', key('submitted'), 0, 9999)) do
  if told == tonumber(ARGV[3]) or bytes > 67108864 then break end  -- the others at the next look
  local b = redis.call('HMGET', key('b', batch), 'queue', 'attempt', 'worker', 'sent', 'bytes')
  if ARGV[4] == 'all' or not seen[b[1]] then
    seen[b[1]], bytes, told = true, bytes + tonumber(b[5]), told + 1
    local one = {batch, b[1], b[2], b[3], whole(math.max(0, at - tonumber(b[4] or '0')))}
    for _, sample in ipairs(redis.call('LRANGE', key('s', batch), 0, -1)) do one[#one + 1] = sample end
    found[#found + 1] = one
  end
end
return found
