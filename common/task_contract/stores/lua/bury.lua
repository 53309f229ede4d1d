-- uses: record, letters
-- ARGV: now, key, owner, fence, attempt, keep, error, reservation or '', letter id, body, the letter's
-- facets, key and cause, then the work.
local FACETS_AT, WORK_AT = 11, 21
local row = ended_row(WORK_AT)
local verdict = ending(row, 'dead')
if verdict == 'ok' then
  local id, keep = ARGV[9], tonumber(ARGV[6])
  close_replay(row.letter_id)
  settle(ARGV[2], row, 'dead', keep)
  row.generation, row.letter_id = row.generation + 1, id
  if ARGV[7] ~= '' then
    row.last_error = ARGV[7]
  end
  save(ARGV[2], row)
  file_letter(id, ARGV[10], FACETS_AT, keep, ARGV[2], row.generation, row.replays)
  release_place(ARGV[8], ARGV[WORK_AT])
end
return { verdict, row.state, row.letter_id }
