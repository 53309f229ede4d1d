-- uses: record, letters
-- ARGV: now, letter id, by, reason.
local letter = load_letter(ARGV[2])
if not letter then
  return { 'unknown', '' }
elseif letter.state == 'discarded' then
  return { 'again', letter.state }
elseif not is_open(letter) then
  return { 'closed', letter.state }
end
letter.closed_by, letter.closed_reason = ARGV[3], ARGV[4]
close_letter(ARGV[2], letter, 'discarded')
return { 'ok', letter.state }
