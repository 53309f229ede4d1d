-- uses: record, letters
-- ARGV: now, letter id.
local letter = load_letter(ARGV[2])
return letter and letter_reply(ARGV[2], letter)
