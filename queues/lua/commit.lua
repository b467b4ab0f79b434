-- The batch changed the parameters at a step of the store. ARGV: epoch, time, batch, attempt, step, and the last step that the caller
-- committed, or nothing. Returns OK, DUPLICATE, FENCED, GONE, EPOCH, HELD, NO_STREAM; or BEHIND: this server does not know of the
-- caller's last step, so it was set back. The batch's samples stay until a checkpoint covers the step: see `release`.
local step = tonumber(ARGV[5])
if not step or step ~= step then return redis.error_reply('ERR commit should have a step, a number') end
local wrong = refused()
if wrong then return wrong end
local last = tonumber(redis.call('HGET', KEYS[1], 'step') or '0')
if ARGV[6] and ARGV[6] ~= '' and last < tonumber(ARGV[6]) then return 'BEHIND' end
local status, place, counter = held(ARGV[3], ARGV[4])
if status ~= 'OK' then return status end
redis.call('ZREM', key(place), ARGV[3])
redis.call('ZADD', key('applied'), ARGV[5], ARGV[3])
count(ARGV[3], counter, 'applied')
if step > last then redis.call('HSET', KEYS[1], 'step', ARGV[5]) end
return 'OK'
