-- uses: record
-- ARGV: now, key, token, message id, ttl, payload hash, record or '', until done.
local key, token, message_id = ARGV[2], ARGV[3], ARGV[4]
local place = load_place(key)
if place and place.token ~= token then
  return 0
end
-- The worker may have been faster than this confirmation and ended the work, which released the reservation: writing
-- it again would keep the next enqueue out for a whole window.
local row = not place and ARGV[7] ~= '' and load(ARGV[7])
local ended = row and (row.state == 'dead' or (row.state == 'done' and ARGV[8] == '1'))
if ended and row.message_id == message_id then
  return 0
end
save_place(key, token, message_id, ARGV[6], 1, tonumber(ARGV[5]))
return 1
