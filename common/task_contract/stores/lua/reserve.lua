-- uses: record
-- ARGV: now, key, token, message id, ttl, payload hash, record or '', token to take over or ''.
local key, token, message_id, ttl, payload_hash = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local place = load_place(key)
local row = ARGV[7] ~= '' and load(ARGV[7]) or nil
local confirmed = place and place.confirmed == 1

local state = row and row.state or (confirmed and 'enqueued') or 'pending'
local known = place and place.payload_hash or (row and row.state ~= 'dead' and row.payload_hash) or ''
if known ~= '' and payload_hash ~= '' and known ~= payload_hash then
  return { 'mismatch', (place or row).message_id, '', state }
end
if place and place.token ~= token and (confirmed or place.token ~= ARGV[8]) then
  return { confirmed and 'duplicate' or 'pending', place.message_id, place.token, state }
end
if not confirmed then
  save_place(key, token, place and place.message_id or message_id, payload_hash, 0, ttl)
end
return { 'won', place and place.message_id or message_id, token, '' }
