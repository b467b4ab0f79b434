-- A checkpoint covers all steps up to one: their samples are let go. ARGV: epoch, time, step. Returns how many batches; at most 500 a call.
local wrong = refused()
if wrong then return wrong end
local covered = redis.call('ZRANGEBYSCORE', key('applied'), '-inf', ARGV[3], 'LIMIT', 0, 500)
for _, batch in ipairs(covered) do
  redis.call('ZREM', key('applied'), batch)
  forget(batch)
end
local m = redis.call('HMGET', KEYS[1], 'step', 'released')
-- What was never committed was not let go: a caller may name a step that nothing reached.
local up_to = math.min(tonumber(ARGV[3]), tonumber(m[1] or '0'))
if up_to > tonumber(m[2] or '0') then redis.call('HSET', KEYS[1], 'released', whole(up_to)) end
return #covered
