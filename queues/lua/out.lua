-- Batches that are out. ARGV: epoch, time, how many of each kind at most.
-- Returns {batch, queue, attempt, worker, `leased`, `back` or `submitted`, milliseconds since it was claimed or submitted} each, those
-- whose lease ends first and those that were submitted first before others; or {EPOCH}, {NO_STREAM}.
local wrong = refused()
if wrong then return {wrong} end
local at, found = now(), {}
for _, place in ipairs({'lease', 'submitted'}) do
  for _, batch in ipairs(redis.call('ZRANGE', key(place), 0, tonumber(ARGV[3]) - 1)) do
    local b = redis.call('HMGET', key('b', batch), 'queue', 'attempt', 'worker', 'claimed', 'sent', 'returned')
    local word, since = 'submitted', b[5]
    if place == 'lease' then
      word, since = 'leased', b[4]
      if b[6] == '1' or tonumber(redis.call('ZSCORE', key('lease'), batch)) <= at then word = 'back' end
    end
    found[#found + 1] = {batch, b[1], b[2], b[3], word, whole(math.max(0, at - tonumber(since or '0')))}
  end
end
return found
