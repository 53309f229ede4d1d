-- uses: record
-- ARGV: now, key, owner, fence, attempt, keep, delay, error, ending, interruptions, then the work.
local row = ended_row(11)
local verdict = ending(row, 'waiting')
if verdict == 'ok' then
  if ARGV[9] == 'interrupted' and row.interruptions < tonumber(ARGV[10]) then
    row.interruptions, row.attempts = row.interruptions + 1, math.max(0, row.attempts - 1)
  elseif ARGV[9] == 'crashed' then
    row.crashes = row.crashes + 1
  end
  settle(ARGV[2], row, 'waiting', tonumber(ARGV[6]))
  row.not_before = NOW + tonumber(ARGV[7])
  if ARGV[8] ~= '' then
    row.last_error = ARGV[8]
  end
  save(ARGV[2], row)
end
return { verdict, row.state }
