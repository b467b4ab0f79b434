-- The batch changed the parameters at a step of the store. ARGV: epoch, time, batch, attempt, step.
-- Returns OK, DUPLICATE, FENCED, GONE, EPOCH, NO_STREAM. Its samples stay until a checkpoint covers the step: see `release`.
local step = tonumber(ARGV[5])
if not step or step ~= step then return redis.error_reply('ERR commit should have a step, a number') end
local wrong = refused()
if wrong then return wrong end
local status, place, counter = held(ARGV[3], ARGV[4])
if status ~= 'OK' then return status end
redis.call('ZREM', key(place), ARGV[3])
count(ARGV[3], counter, 'applied')
redis.call('ZADD', key('applied'), ARGV[5], ARGV[3])
return 'OK'
