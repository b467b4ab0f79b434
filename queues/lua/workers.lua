-- Workers that asked for a batch within a day, who asked last first. ARGV: epoch, time, how many at most.
-- Returns {worker, milliseconds since} each; or {EPOCH}, {NO_STREAM}.
local wrong = refused()
if wrong then return {wrong} end
local at, found = now(), {}
local seen = redis.call('ZREVRANGE', key('workers'), 0, tonumber(ARGV[3]) - 1, 'WITHSCORES')
for number = 1, #seen, 2 do found[#found + 1] = {seen[number], whole(math.max(0, at - tonumber(seen[number + 1])))} end
return found
