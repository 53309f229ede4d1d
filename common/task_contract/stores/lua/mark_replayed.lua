-- uses: record, letters
-- ARGV: now, letter id.
local letter = load_letter(ARGV[2])
if not letter or (letter.state ~= 'replaying' and letter.state ~= 'replayed') then
  return 0
end
if letter.state == 'replaying' then
  close_letter(ARGV[2], letter, 'replayed')
end
return 1
