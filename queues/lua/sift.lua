-- Samples that changed the parameters and wait here all the same, under another arrival than they had then, are taken out: this server was
-- set back to a copy, and now to another, from before that. `adopt` noted them. ARGV: epoch, time, queue.
-- A batch that has some of them is taken apart; what is left of it waits again, before all others.
-- Returns {OK, how many samples}; or {UNKNOWN}, {EPOCH}, {HELD}, {NO_STREAM}.
local queue = ARGV[3]
local wrong = refused(queue)
if wrong then return {wrong} end
although_full()
if redis.call('HDEL', key('c', queue), 'unsifted') == 0 then return {'OK', 0} end
local gone, bytes, c = 0, 0, key('c', queue)

local function sifted(list)
  local samples, left = redis.call('LRANGE', list, 0, -1), {}
  for _, sample in ipairs(samples) do
    if applied_before(queue, string.sub(sample, 9)) then
      gone, bytes = gone + 1, bytes + #sample
    else
      left[#left + 1] = sample
    end
  end
  return left, #samples
end

local function take_apart(batch, counter)
  local left, all = sifted(key('s', batch))
  if #left == all then return false end
  redis.call('HINCRBY', c, counter, 0 - all)
  if OUT[counter] then redis.call('HINCRBY', c, 'away', -1) end
  redis.call('DEL', key('b', batch), key('s', batch))
  for number = #left, 1, -1 do redis.call('LPUSH', key('q', queue), left[number]) end
  return true
end

local waiting, all = sifted(key('q', queue))
if #waiting < all then
  redis.call('DEL', key('q', queue))
  in_pieces('RPUSH', key('q', queue), waiting)
end
for place, counter in pairs({lease = 'leased', submitted = 'submitted'}) do
  for _, batch in ipairs(redis.call('ZREVRANGE', key(place), 0, -1)) do
    if redis.call('HGET', key('b', batch), 'queue') == queue and take_apart(batch, counter) then redis.call('ZREM', key(place), batch) end
  end
end
for _, batch in ipairs(redis.call('LRANGE', key('dead', queue), 0, -1)) do
  if take_apart(batch, 'dead') then redis.call('LREM', key('dead', queue), 1, batch) end
end
redis.call('HINCRBY', c, 'pushed', 0 - gone)
redis.call('HINCRBY', KEYS[1], 'bytes', 0 - bytes)
line_up(queue, redis.call('LLEN', key('q', queue)), now())
return {'OK', gone}
