-- uses: record
-- ARGV: now, then eight of each beat: key, owner, fence, lease, draining, progress, note, silent for.
local function renew(key, row, at)
  renew_lease(key, row, NOW + tonumber(ARGV[at + 3]))
  row.draining = tonumber(ARGV[at + 4])
  local progress, silent_for = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 7])
  if progress >= 0 then
    row.progress, row.note = progress, ARGV[at + 6]
  end
  if silent_for >= 0 then
    row.beat_at = NOW - silent_for
  end
  save(key, row)
end

local answers = {}
for at = 2, #ARGV, 8 do
  local key = ARGV[at]
  local row = load(key)
  if not row then
    answers[#answers + 1] = 'missing'
  elseif not owns(row, ARGV[at + 1], tonumber(ARGV[at + 2])) then
    answers[#answers + 1] = 'lost'
  else
    if row.state == 'running' then
      renew(key, row, at)
    end
    answers[#answers + 1] = 'held'
  end
end
return answers
