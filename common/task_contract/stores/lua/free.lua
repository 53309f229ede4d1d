-- uses: record
-- ARGV: now, key, message id.
return release_place(ARGV[2], ARGV[3])
