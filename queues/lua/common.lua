-- What all scripts share. KEYS[1] is `meta`; ARGV[1] the epoch or `*`, and behind an `@` who holds the stream, where only that one
-- may say so; ARGV[2] the time in milliseconds, or nothing: the server's.
local P = string.sub(KEYS[1], 1, -5)

local function key(name, ...)
  local found = P .. name
  for _, part in ipairs({...}) do found = found .. ':' .. part end
  return found
end

-- Why a caller may not go on; nil where it may. With a queue: also where there is none of that name.
local function refused(queue)
  local found = redis.call('HMGET', KEYS[1], 'epoch', 'holder')
  if not found[1] then return 'NO_STREAM' end
  local epoch, holder = string.match(ARGV[1], '^([^@]*)@?(.*)$')
  if epoch ~= '*' and epoch ~= found[1] then return 'EPOCH' end
  if holder ~= '' and holder ~= found[2] then return 'HELD' end
  if queue and redis.call('EXISTS', key('c', queue)) == 0 then return 'UNKNOWN' end
  return nil
end

-- Which start of this server it is.
local function run_id() return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or '' end

-- Whether this server was started again since the server of the stream looked at it last. It may have come up with an older copy of its
-- data: until what is applied was told to it, no batch is given, and no sample taken that may have come before.
local function restarted()
  local run = redis.call('HGET', KEYS[1], 'run')
  return run and run ~= run_id()
end

-- A server whose memory is full refuses a script's first write if that may need more of it, and lets all pass after a write that may not.
-- What frees memory in the end, as a batch that goes on does, begins with this; `push` does not.
local function although_full() redis.call('DEL', key('nothing')) end

local function now()
  if ARGV[2] ~= '' then return tonumber(ARGV[2]) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function whole(number) return string.format('%.0f', number) end

-- The time of fair turns: a step may be a small part of it.
local function exact(number) return string.format('%.17g', number) end

local function arrival(sample) return struct.unpack('>d', sample) end

-- Lua passes about 8,000 values to a function at most.
local function in_pieces(command, list, values)
  for first = 1, #values, 1000 do
    redis.call(command, list, unpack(values, first, math.min(first + 999, #values)))
  end
end

-- The server of the stream waits at this list: it is told that there is something to look at, and looks itself what.
local function ring(why)
  redis.call('RPUSH', key('bell'), why)
  redis.call('LTRIM', key('bell'), -16, -1)
end

-- Where a queue stands in line: it holds a batch, or it will when its oldest sample has waited for long enough, or neither.
-- A queue of which as many batches are out as may be holds none.
local function line_up(queue, waiting, at)
  local c = redis.call('HMGET', key('c', queue), 'batch', 'state', 'flush', 'least', 'time', 'priority', 'out', 'away')
  local state, flush, out = c[2], tonumber(c[3]), tonumber(c[7] or '0')
  local holds, due = false, nil
  if waiting > 0 and (state == 'open' or state == 'draining') and (out == 0 or tonumber(c[8] or '0') < out) then
    holds = state == 'draining' or waiting >= tonumber(c[1])
    if not holds and flush > 0 and waiting >= tonumber(c[4]) then
      due = arrival(redis.call('LINDEX', key('q', queue), 0)) + flush
      holds = due <= at
    end
  end
  if not holds then
    redis.call('ZREM', key('ready'), queue)
    if due then redis.call('ZADD', key('due'), whole(due), queue) else redis.call('ZREM', key('due'), queue) end
    return
  end
  redis.call('ZREM', key('due'), queue)
  if redis.call('ZSCORE', key('ready'), queue) then return end
  local m = redis.call('HMGET', KEYS[1], 'policy', 'clock', 'aging')
  local turn
  if m[1] == 'fair' then
    -- Who slept comes in at the present, not at its own past, or it would have all the turns at first.
    turn = exact(math.max(tonumber(c[5]), tonumber(m[2])))
    redis.call('HSET', key('c', queue), 'time', turn)
  elseif m[1] == 'priority' then
    turn = whole(at - tonumber(c[6]) * tonumber(m[3]))
  else
    turn = redis.call('HINCRBY', KEYS[1], 'turn', 1)
  end
  redis.call('ZADD', key('ready'), turn, queue)
  ring('ready')
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

local OUT = {leased = 1, submitted = 1}

-- Whether a sample changed the parameters before this server was set back to a copy that does not have it: see `adopt`.
local function applied_before(queue, sample)
  local digest = redis.sha1hex(sample)
  local times = tonumber(redis.call('HGET', key('known', queue), digest) or '0')
  if times > 1 then redis.call('HINCRBY', key('known', queue), digest, -1) else redis.call('HDEL', key('known', queue), digest) end
  return times > 0
end

-- A batch goes from one counter of its queue to another.
local function count(batch, from, to)
  local b = redis.call('HMGET', key('b', batch), 'queue', 'count')
  local queue, c = b[1], key('c', b[1])
  redis.call('HINCRBY', c, from, 0 - tonumber(b[2]))
  redis.call('HINCRBY', c, to, tonumber(b[2]))
  local more = (OUT[to] or 0) - (OUT[from] or 0)
  if more ~= 0 then
    redis.call('HINCRBY', c, 'away', more)
    if tonumber(redis.call('HGET', c, 'out') or '0') > 0 then line_up(queue, redis.call('LLEN', key('q', queue)), now()) end
  end
  return queue
end

-- A batch's samples are not needed any more.
local function forget(batch)
  local bytes = redis.call('HGET', key('b', batch), 'bytes')
  redis.call('HINCRBY', KEYS[1], 'bytes', 0 - tonumber(bytes or '0'))
  redis.call('DEL', key('b', batch), key('s', batch))
end

local function bury(batch, reason, from)
  local queue = count(batch, from, 'dead')
  redis.call('HSET', key('b', batch), 'reason', reason)
  redis.call('RPUSH', key('dead', queue), batch)
end
