-- uses: record
-- ARGV: now, key, token.
local place = load_place(ARGV[2])
if not place or place.token ~= ARGV[3] or place.confirmed == 1 then
  return 0
end
return redis.call('DEL', place_key(ARGV[2]))
