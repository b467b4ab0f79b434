-- Samples of one queue, in their order. ARGV: epoch, time, queue, producer, number of the first sample, samples...
-- A producer that says who it is and counts its samples from 1 may send again what it does not know to have arrived.
-- Returns status and depth: OK, DUPLICATE (all of them were here before), BUSY, PAUSED, UNKNOWN, EPOCH, NO_STREAM.
local wrong = refused()
if wrong then return {wrong, 0} end
local queue, producer, first = ARGV[3], ARGV[4], tonumber(ARGV[5])
local c = redis.call('HMGET', key('c', queue), 'most', 'state')
if not c[1] then return {'UNKNOWN', 0} end
local waiting = redis.call('LLEN', key('q', queue))
if c[2] ~= 'open' then return {'PAUSED', waiting} end

local known, from = key('p', queue, producer), 6
if producer ~= '' then
  local last = tonumber(redis.call('GET', known) or '0')
  from = 6 + math.max(0, last - first + 1)
  if from > #ARGV then return {'DUPLICATE', waiting} end
end

local bytes, more = 0, #ARGV - from + 1
for number = from, #ARGV do bytes = bytes + #ARGV[number] + 8 end
local m = redis.call('HMGET', KEYS[1], 'budget', 'bytes')
if waiting + more > tonumber(c[1]) or tonumber(m[2]) + bytes > tonumber(m[1]) then return {'BUSY', waiting} end

local at = now()
local stamp, values = struct.pack('>d', at), {}
for number = from, #ARGV do values[#values + 1] = stamp .. ARGV[number] end
in_pieces('RPUSH', key('q', queue), values)
redis.call('HINCRBY', KEYS[1], 'bytes', bytes)
redis.call('HINCRBY', key('c', queue), 'pushed', more)
if producer ~= '' then redis.call('SET', known, whole(first + #ARGV - 6), 'EX', 2592000) end
line_up(queue, waiting + more, at)
return {'OK', waiting + more}
