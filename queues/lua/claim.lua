-- A batch for a worker. ARGV: epoch, time, worker, a new random batch id.
-- Returns nothing where nothing is ready; else {batch, queue, attempt, samples...}, or {EPOCH} or {NO_STREAM}.
local wrong = refused()
if wrong then return {wrong} end
if restarted() then return nil end
local worker, fresh, at = ARGV[3], ARGV[4], now()
local m = redis.call('HMGET', KEYS[1], 'lease', 'attempts', 'policy', 'exponent')
local lease, attempts = tonumber(m[1]), tonumber(m[2])

-- Who asks is there. Who did not ask for a day is forgotten.
if worker ~= '' then
  although_full()
  redis.call('ZADD', key('workers'), whole(at), worker)
  redis.call('ZREMRANGEBYSCORE', key('workers'), '-inf', whole(at - 86400000))
end

local function hand_out(batch, queue, attempt)
  redis.call('HSET', key('b', batch), 'worker', worker, 'claimed', whole(at), 'attempt', attempt)
  redis.call('ZADD', key('lease'), whole(at + lease), batch)
  local found = {batch, queue, tostring(attempt)}
  for _, sample in ipairs(redis.call('LRANGE', key('s', batch), 0, -1)) do found[#found + 1] = sample end
  return found
end

-- What was lost comes first: the same samples in the same order, under the next attempt.
-- What comes back to a queue that gives no batches now is laid aside, out of its worker's hands, until `configure` lets it go on.
while true do
  local lost = redis.call('ZRANGEBYSCORE', key('lease'), '-inf', whole(at), 'LIMIT', 0, 1)[1]
  if not lost then break end
  although_full()
  local b = redis.call('HMGET', key('b', lost), 'queue', 'attempt', 'fails', 'returned')
  local fails = tonumber(b[3])
  if b[4] == '1' then
    redis.call('HDEL', key('b', lost), 'returned')  -- its worker gave it back and said why: counted then
  else
    fails = redis.call('HINCRBY', key('b', lost), 'fails', 1)
  end
  local state = redis.call('HGET', key('c', b[1]), 'state')
  if fails >= attempts then
    redis.call('ZREM', key('lease'), lost)
    bury(lost, 'its worker was silent for longer than the lease', 'leased')
  elseif state ~= 'open' and state ~= 'draining' then
    redis.call('HSET', key('b', lost), 'returned', '1')
    redis.call('ZADD', key('lease'), '+inf', lost)
  else
    return hand_out(lost, b[1], tonumber(b[2]) + 1)
  end
end

local function take(queue)
  local c = redis.call('HMGET', key('c', queue), 'batch', 'weight', 'pushed', 'time')
  local samples = redis.call('LPOP', key('q', queue), c[1])
  local bytes = 0
  for _, sample in ipairs(samples) do bytes = bytes + #sample end
  in_pieces('RPUSH', key('s', fresh), samples)
  redis.call('HSET', key('b', fresh), 'queue', queue, 'count', #samples, 'bytes', bytes, 'fails', 0)
  redis.call('HINCRBY', key('c', queue), 'leased', #samples)
  redis.call('HINCRBY', key('c', queue), 'away', 1)
  redis.call('ZREM', key('ready'), queue)
  if m[3] == 'fair' then
    local mine = tonumber(c[4])
    redis.call('HSET', KEYS[1], 'clock', c[4])
    local share = tonumber(c[2]) * math.pow(tonumber(c[3]), tonumber(m[4]))
    redis.call('HSET', key('c', queue), 'time', exact(mine + #samples / share))
  end
  line_up(queue, redis.call('LLEN', key('q', queue)), at)
  return hand_out(fresh, queue, 1)
end

-- Samples that have waited for long enough make a batch of what there is, which then waits for its turn as others do.
for _, queue in ipairs(redis.call('ZRANGEBYSCORE', key('due'), '-inf', whole(at), 'LIMIT', 0, 100)) do
  line_up(queue, redis.call('LLEN', key('q', queue)), at)
end
local next_one = redis.call('ZRANGE', key('ready'), 0, 0)[1]
if next_one then return take(next_one) end
return nil
