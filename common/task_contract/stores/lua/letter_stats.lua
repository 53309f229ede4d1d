-- uses: record, letters
-- ARGV: now.
sweep(1000)
local oldest = redis.call('ZRANGE', OPEN, 0, 0, 'WITHSCORES')
local reasons = {}
for _, reason in ipairs(redis.call('SMEMBERS', REASONS)) do
  local count = redis.call('ZCARD', facet_key(REASON, reason))
  if count > 0 then
    reasons[#reasons + 1] = reason
    reasons[#reasons + 1] = count
  else
    redis.call('SREM', REASONS, reason)
  end
end
return { redis.call('ZCARD', OPEN), oldest[2] or '0', reasons }
