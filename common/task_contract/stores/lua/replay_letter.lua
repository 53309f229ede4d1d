-- uses: record, letters
-- ARGV: now, letter id, by, reason, keep.
local function from_letter(id, letter)
  local row, facets = empty_row(), letter.facets
  row.message_type, row.correlation_id, row.subject, row.message_id = facets[1], facets[6], facets[7], facets[8]
  row.key, row.causation_id, row.generation, row.letter_id = letter.key, letter.causation_id, letter.generation, id
  return row
end

local id, keep = ARGV[2], tonumber(ARGV[5])
local letter = load_letter(id)
if not letter then
  return { 'unknown', '' }
elseif not is_open(letter) then
  return { 'closed', letter.state }
end
if letter.generation > 0 then
  local row = load(letter.store_key)
  if row and (row.generation ~= letter.generation or (row.state ~= 'dead' and row.state ~= 'waiting')) then
    return { 'moved', row.state }
  end
  row = row or from_letter(id, letter)
  settle(letter.store_key, row, 'waiting', keep)
  row.replays, row.owner = letter.replays + 1, ''
  row.attempts, row.crashes, row.interruptions = 0, 0, 0
  save(letter.store_key, row)
end
letter.state, letter.closed_by, letter.closed_reason = 'replaying', ARGV[3], ARGV[4]
save_letter(id, letter)
return { 'ok', letter.state, letter_reply(id, letter) }
