-- Samples of one queue, in their order. ARGV: epoch, time, queue, producer, number of the first sample, samples...
-- A producer that says who it is and counts its samples from 1, without a gap, may send again what it does not know to have arrived.
-- Returns status and depth: OK, DUPLICATE (all of them were here before), BUSY, PAUSED, RESTARTED, UNKNOWN, EPOCH, NO_STREAM;
-- or GAP and the number of the producer's last sample here: those between are missing.

local queue, producer, first = ARGV[3], ARGV[4], tonumber(ARGV[5])
if #ARGV < 5 or (producer ~= '' and not (first and first >= 1 and first <= 9007199254740992 and first == math.floor(first))) then
  return redis.error_reply('ERR push should have epoch, time, queue, producer and the number of the first sample, counted from 1')
end
local wrong = refused(queue)
if wrong then return {wrong, 0} end
local waiting, more, known = redis.call('LLEN', key('q', queue)), #ARGV - 5, key('p', queue, producer)
if more == 0 then return {'OK', waiting} end
if producer ~= '' then
  if restarted() then return {'RESTARTED', waiting} end
  local last = tonumber(redis.call('GET', known) or '0')
  if first > last + 1 then return {'GAP', last} end
  more = more - (last - first + 1)
  if more <= 0 then return {'DUPLICATE', waiting} end
end
local c = redis.call('HMGET', key('c', queue), 'most', 'state')
if c[2] ~= 'open' and c[2] ~= 'filling' then return {'PAUSED', waiting} end

local bytes, from = 0, #ARGV - more + 1
for number = from, #ARGV do bytes = bytes + #ARGV[number] + 8 end
local m = redis.call('HMGET', KEYS[1], 'budget', 'bytes')
if waiting + more > tonumber(c[1]) or tonumber(m[2]) + bytes > tonumber(m[1]) then return {'BUSY', waiting} end

local at = now()
local stamp, values = struct.pack('>d', at), {}
local known_here = producer ~= '' and redis.call('EXISTS', key('known', queue)) == 1
for number = from, #ARGV do
  if known_here and applied_before(queue, ARGV[number]) then
    more, bytes = more - 1, bytes - #ARGV[number] - 8
  else
    values[#values + 1] = stamp .. ARGV[number]
  end
end
in_pieces('RPUSH', key('q', queue), values)
redis.call('HINCRBY', KEYS[1], 'bytes', bytes)
redis.call('HINCRBY', key('c', queue), 'pushed', more)
if producer ~= '' then redis.call('SET', known, whole(first + #ARGV - 6), 'EX', 2592000) end
line_up(queue, waiting + more, at)
return {'OK', waiting + more}
