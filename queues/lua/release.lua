-- A checkpoint covers all steps up to one: their samples are let go. ARGV: epoch, time, step. Returns how many batches; at most 500 a call.
local wrong = refused()
if wrong then return wrong end
local covered = redis.call('ZRANGEBYSCORE', key('applied'), '-inf', ARGV[3], 'LIMIT', 0, 500)
for _, batch in ipairs(covered) do
  redis.call('ZREM', key('applied'), batch)
  forget(batch)
end
return #covered
