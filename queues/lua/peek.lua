-- The oldest samples that wait. ARGV: epoch, time, queue, the place of the last of them (-1: of all). Returns them, or UNKNOWN, EPOCH, NO_STREAM.
local wrong = refused(ARGV[3])
if wrong then return wrong end
return redis.call('LRANGE', key('q', ARGV[3]), 0, ARGV[4])
