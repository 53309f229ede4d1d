-- uses: record, letters
-- ARGV: now, letter id, keep, body, then the letter's facets, key and cause.
if not load_letter(ARGV[2]) then
  file_letter(ARGV[2], ARGV[4], 5, tonumber(ARGV[3]), '', 0, 0)
end
return ARGV[2]
