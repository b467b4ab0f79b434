-- Batches that changed the parameters beyond a step and that no checkpoint covers. ARGV: epoch, time, step, how many at most.
-- Returns {batch, queue, step} each, by step; or {EPOCH}, {NO_STREAM}.
local wrong = refused()
if wrong then return {wrong} end
local found, flat = {}, redis.call('ZRANGEBYSCORE', key('applied'), '(' .. ARGV[3], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[4])
for number = 1, #flat, 2 do
  found[#found + 1] = {flat[number], redis.call('HGET', key('b', flat[number]), 'queue'), flat[number + 1]}
end
return found
