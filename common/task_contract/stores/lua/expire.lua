-- uses: record, letters
-- ARGV: now, limit. Records and reservations expire by themselves.
return sweep(tonumber(ARGV[2]))
