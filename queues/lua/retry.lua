-- Dead batches get all their attempts again. ARGV: epoch, time, queue, batches... (none: all). Returns how many, or UNKNOWN, EPOCH, NO_STREAM.
local wrong = refused(ARGV[3])
if wrong then return wrong end
local asked, done = {}, 0
for number = 4, #ARGV do asked[ARGV[number]] = true end
for _, batch in ipairs(redis.call('LRANGE', key('dead', ARGV[3]), 0, -1)) do
  if #ARGV == 3 or asked[batch] then
    redis.call('LREM', key('dead', ARGV[3]), 1, batch)
    redis.call('HSET', key('b', batch), 'fails', 0, 'returned', '1')
    count(batch, 'dead', 'leased')
    redis.call('ZADD', key('lease'), 0, batch)
    done = done + 1
  end
end
if done > 0 then ring('back') end
return done
