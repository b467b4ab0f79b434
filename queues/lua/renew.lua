-- A longer lease for a long step. ARGV: epoch, time, batch, attempt. Returns OK, DUPLICATE, FENCED, GONE, EPOCH.
local wrong = refused()
if wrong then return wrong end
although_full()
local status, place = held(ARGV[3], ARGV[4])
if status == 'OK' and place == 'lease' then
  redis.call('ZADD', key('lease'), 'XX', whole(now() + tonumber(redis.call('HGET', KEYS[1], 'lease'))), ARGV[3])
end
return status
