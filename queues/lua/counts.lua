-- One queue at one moment. ARGV: epoch, time, queue. Returns nothing where there is no such queue; else depth, milliseconds that its oldest
-- sample waits, and its settings and counters, name by name.
if refused() or redis.call('EXISTS', key('c', ARGV[3])) == 0 then return nil end
local oldest = redis.call('LINDEX', key('q', ARGV[3]), 0)
local age = oldest and math.max(0, now() - arrival(oldest)) or 0
return {redis.call('LLEN', key('q', ARGV[3])), whole(age), redis.call('HGETALL', key('c', ARGV[3]))}
