-- The store is at a step, and no further: batches that changed the parameters beyond it come back, as if their workers had given them
-- back, in the order of their steps and before all others. ARGV: epoch, time, step; or nothing for it, and the one batch that comes back.
-- Returns how many; at most 500 a call.
local wrong = refused()
if wrong then return wrong end
although_full()
local one, back = ARGV[4], {}
if one then
  back = {one, redis.call('ZSCORE', key('applied'), one)}
else
  back = redis.call('ZRANGEBYSCORE', key('applied'), '(' .. ARGV[3], '+inf', 'WITHSCORES', 'LIMIT', 0, 500)
end
for number = 1, #back, 2 do
  local batch = back[number]
  redis.call('ZREM', key('applied'), batch)
  redis.call('HSET', key('b', batch), 'returned', '1', 'reason', 'the store went back to a step before it')
  redis.call('ZADD', key('lease'), whole(tonumber(back[number + 1]) - 1e12), batch)
  count(batch, 'applied', 'leased')
end
if #back > 0 then ring('back') end
if #back < 1000 and not one then  -- all of them
  for _, mark in ipairs({'step', 'released'}) do
    if tonumber(redis.call('HGET', KEYS[1], mark) or '0') > tonumber(ARGV[3]) then redis.call('HSET', KEYS[1], mark, ARGV[3]) end
  end
end
return #back / 2
