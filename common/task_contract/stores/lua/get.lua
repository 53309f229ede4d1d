-- uses: record
-- ARGV: now, key.
local row = load(ARGV[2])
return row and pack(row, FIELDS)
