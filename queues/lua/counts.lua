-- One queue at one moment. ARGV: epoch, time, queue. Returns depth, milliseconds that its oldest sample waits, and its settings and
-- counters, name by name; or UNKNOWN, EPOCH, NO_STREAM.
local wrong = refused(ARGV[3])
if wrong then return wrong end
local oldest = redis.call('LINDEX', key('q', ARGV[3]), 0)
local age = oldest and math.max(0, now() - arrival(oldest)) or 0
return {redis.call('LLEN', key('q', ARGV[3])), whole(age), redis.call('HGETALL', key('c', ARGV[3]))}
