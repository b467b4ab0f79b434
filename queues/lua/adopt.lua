-- A batch changed the parameters at a step of the store, and this server may not know of it: it was set back to an older copy. Wherever
-- its samples are now, they are applied. ARGV: epoch, time, queue, batch, step, attempt, samples as they lay in the queue...
-- Returns {KNOWN} where nothing was to be done; {OK, how many of its samples were found here}; or {UNKNOWN}, {EPOCH}, {HELD}, {NO_STREAM}.
local queue, batch, step = ARGV[3], ARGV[4], tonumber(ARGV[5])
local wrong = refused(queue)
if wrong then return {wrong} end
local m = redis.call('HMGET', KEYS[1], 'step', 'released')
if step <= tonumber(m[2] or '0') then return {'KNOWN'} end
if redis.call('ZSCORE', key('applied'), batch) then
  redis.call('ZADD', key('applied'), ARGV[5], batch)  -- at another step, before the store was set back
  return {'KNOWN'}
end
although_full()
local samples, found = #ARGV - 6, #ARGV - 6
local place, counter = place_of(batch)
if not place and redis.call('LREM', key('dead', queue), 1, batch) == 1 then counter = 'dead' end
if counter then
  if place then redis.call('ZREM', key(place), batch) end
  count(batch, counter, 'applied')
else
  -- It was claimed after the copy was made: its samples wait, or were pushed after it too. A producer that counts its samples will be
  -- told that those are missing, and send them again: they are noted, so that `push` leaves them out then.
  local bytes, lost, values = 0, 0, {}
  found = 0
  for number = 7, #ARGV do
    local sample = ARGV[number]
    values[#values + 1], bytes = sample, bytes + #sample
    if redis.call('LREM', key('q', queue), 1, sample) == 1 then
      found = found + 1
    else
      lost = lost + #sample
      redis.call('HINCRBY', key('known', queue), redis.sha1hex(string.sub(sample, 9)), 1)
      redis.call('EXPIRE', key('known', queue), 2592000)
      redis.call('HSET', key('c', queue), 'unsifted', '1')
    end
  end
  in_pieces('RPUSH', key('s', batch), values)
  redis.call('HSET', key('b', batch), 'queue', queue, 'count', samples, 'bytes', bytes, 'fails', 0, 'attempt', ARGV[6], 'worker', '')
  redis.call('HINCRBY', KEYS[1], 'bytes', lost)
  redis.call('HINCRBY', key('c', queue), 'pushed', samples - found)
  redis.call('HINCRBY', key('c', queue), 'applied', samples)
  line_up(queue, redis.call('LLEN', key('q', queue)), now())
end
redis.call('ZADD', key('applied'), ARGV[5], batch)
if step > tonumber(m[1] or '0') then redis.call('HSET', KEYS[1], 'step', ARGV[5]) end
return {'OK', found}
