-- What all scripts share. KEYS[1] is `meta`; ARGV[1] the epoch or `*`; ARGV[2] the time in milliseconds, or nothing: the server's.
local P = string.sub(KEYS[1], 1, -5)

local function key(name, ...)
  local found = P .. name
  for _, part in ipairs({...}) do found = found .. ':' .. part end
  return found
end

-- Why a caller may not go on; nil where it may.
local function refused()
  local found = redis.call('HGET', KEYS[1], 'epoch')
  if not found then return 'NO_STREAM' end
  if ARGV[1] ~= '*' and ARGV[1] ~= found then return 'EPOCH' end
  return nil
end

local function now()
  if ARGV[2] ~= '' then return tonumber(ARGV[2]) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function whole(number) return string.format('%.0f', number) end

local function setting(queue, name) return tonumber(redis.call('HGET', key('c', queue), name)) end

local function arrival(sample) return struct.unpack('>d', sample) end

-- Lua passes about 8,000 values to a function at most.
local function in_pieces(command, list, values)
  for first = 1, #values, 1000 do
    redis.call(command, list, unpack(values, first, math.min(first + 999, #values)))
  end
end

-- Where a queue stands in line: it holds a batch, or its oldest sample has a last moment, or neither.
local function line_up(queue, waiting, at)
  local c = redis.call('HMGET', key('c', queue), 'batch', 'state', 'flush', 'time', 'priority')
  local batch, state, flush = tonumber(c[1]), c[2], tonumber(c[3])
  if state == 'paused' or state == 'stopped' or waiting == 0 then
    redis.call('ZREM', key('ready'), queue)
    redis.call('ZREM', key('due'), queue)
    return
  end
  if waiting >= batch or state == 'draining' then
    if not redis.call('ZSCORE', key('ready'), queue) then
      local m = redis.call('HMGET', KEYS[1], 'policy', 'clock', 'aging')
      local turn
      if m[1] == 'fair' then
        -- Who slept comes in at the present, not at its own past, or it would have all the turns at first.
        turn = math.max(tonumber(c[4]), tonumber(m[2]))
        redis.call('HSET', key('c', queue), 'time', whole(turn))
      elseif m[1] == 'priority' then
        turn = at - tonumber(c[5]) * tonumber(m[3])
      else
        turn = redis.call('HINCRBY', KEYS[1], 'turn', 1)
      end
      redis.call('ZADD', key('ready'), whole(turn), queue)
    end
    redis.call('ZREM', key('due'), queue)
    return
  end
  redis.call('ZREM', key('ready'), queue)
  if flush > 0 then
    redis.call('ZADD', key('due'), whole(arrival(redis.call('LINDEX', key('q', queue), 0)) + flush), queue)
  end
end

-- Where a batch is: the name of its sorted set and its queue's counter, or nil.
local function place_of(batch)
  for _, place in ipairs({'lease', 'submitted'}) do
    if redis.call('ZSCORE', key(place), batch) then return place, (place == 'lease') and 'leased' or 'submitted' end
  end
  return nil
end

-- Whether an attempt may speak for a batch: OK and its place and counter; or DUPLICATE, GONE, FENCED.
local function held(batch, attempt)
  if redis.call('ZSCORE', key('applied'), batch) then return 'DUPLICATE' end
  local place, counter = place_of(batch)
  if not place then return 'GONE' end
  local b = redis.call('HMGET', key('b', batch), 'attempt', 'returned')
  if b[1] ~= attempt or b[2] == '1' then return 'FENCED' end
  return 'OK', place, counter
end

-- A batch goes from one counter of its queue to another.
local function count(batch, from, to)
  local b = redis.call('HMGET', key('b', batch), 'queue', 'count')
  if from then redis.call('HINCRBY', key('c', b[1]), from, -tonumber(b[2])) end
  if to then redis.call('HINCRBY', key('c', b[1]), to, tonumber(b[2])) end
  return b[1]
end

-- A batch's samples are not needed any more.
local function forget(batch)
  local bytes = redis.call('HGET', key('b', batch), 'bytes')
  redis.call('HINCRBY', KEYS[1], 'bytes', -tonumber(bytes or '0'))
  redis.call('DEL', key('b', batch), key('s', batch))
end

local function bury(batch, reason, from)
  local queue = count(batch, from, 'dead')
  redis.call('HSET', key('b', batch), 'reason', reason)
  redis.call('RPUSH', key('dead', queue), batch)
end
