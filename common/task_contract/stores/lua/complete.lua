-- uses: record, letters
-- ARGV: now, key, owner, fence, attempt, keep, has result, result, reservation or '', then the work.
local row = ended_row(10)
local verdict = ending(row, 'done')
if verdict == 'ok' then
  close_replay(row.letter_id)
  settle(ARGV[2], row, 'done', tonumber(ARGV[6]))
  row.has_result, row.result = tonumber(ARGV[7]), ARGV[8]
  save(ARGV[2], row)
  release_place(ARGV[9], ARGV[10])
end
return { verdict, row.state }
