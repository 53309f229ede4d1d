-- uses: record, letters
-- ARGV: now, key, owner, lease, keep, attempts, crashes, interruptions, suspects, slot or '', slots, seen ids kept,
-- then the work.
local key, owner, lease, keep = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local max_attempts, max_crashes, max_interruptions = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
-- With a single permitted crash every first run would need the lock, and the fleet would run one task at a time.
local needs_lock = ARGV[9] == '1' and max_crashes > 1
local slot, slots, seen_kept, WORK_AT = ARGV[10], tonumber(ARGV[11]), tonumber(ARGV[12]), 13
local message_id, payload_hash, worker = ARGV[WORK_AT], ARGV[WORK_AT + 3], ARGV[WORK_AT + 7]
local row = load(key)

local function answer(outcome, wait, reason)
  local done = outcome == 'done'
  return {
    outcome, row.fence, row.attempts, row.crashes, wait or 0, reason or '', row.message_id,
    done and row.has_result or 0, done and row.result or '',
  }
end

local FORMER = '%-'

-- An id as one word among others: "a b" must not make a stranger called "b" known.
local function one_word(id)
  return (id:gsub('%%', '%%25'):gsub(' ', '%%20'))
end

local function hand_over()
  row.state, row.owner, row.fence = 'running', owner, row.fence + 1
  row.lease_until, row.not_before, row.draining = NOW + lease, 0, 0
  row.progress, row.note, row.beat_at = -1, '', 0
  row.updated_at, row.expires_at = NOW, NOW + keep
end

local function exhausted()
  return answer('exhausted', 0, row.crashes >= max_crashes and 'crashes' or 'attempts')
end

-- No attempt is left: whoever asks gets the record to bury it, without running it.
local function exhaust()
  leave_places(key, row)
  hand_over()
  row.exhausted = 1
  save(key, row)
  return exhausted()
end

-- The ids that ran so far, this record's own included; `mark` is put before those that have none.
local function ids_so_far(mark)
  local ids = {}
  for word in (row.seen_ids .. ' ' .. one_word(row.message_id)):gmatch('[^ ]+') do
    ids[#ids + 1] = word:sub(1, #mark) == mark and word or mark .. word
  end
  return table.concat(ids, ' ', math.max(1, #ids - seen_kept + 1))
end

-- Another message carries the work on: its id is the record's now, and the ones before are remembered as stale.
local function adopt()
  if row.message_id ~= message_id then
    row.seen_ids = ids_so_far('')
    row.message_id = message_id
  end
  if row.payload_hash == '' then
    row.payload_hash = payload_hash
  end
  row.worker = worker
end

local function supersede(id)
  local letter = id and load_letter(id)
  if letter and is_open(letter) then
    close_letter(id, letter, 'superseded')
  end
end

local function start(superseded)
  local suspect = needs_lock and row.crashes >= max_crashes - 1
  if slot ~= '' and places_taken(slot_key(slot), key) >= slots then
    return answer('busy', lease, 'slots')
  elseif suspect and places_taken(SUSPECTS, key) > 0 then
    return answer('busy', lease, 'suspect')
  end
  leave_places(key, row)
  hand_over()
  adopt()
  row.attempts, row.started_at, row.suspect, row.slot = row.attempts + 1, NOW, suspect and 1 or 0, slot
  take_places(key, row)
  supersede(superseded)
  save(key, row)
  return answer('won')
end

-- Account for a lease that ran out: an announced shutdown gives the attempt back, anything else is a crash.
local function lapse()
  if row.draining == 1 and row.interruptions < max_interruptions then
    row.interruptions, row.attempts = row.interruptions + 1, row.attempts - 1
    return false
  end
  row.crashes = row.crashes + 1
  return true
end

local function meet_running()
  if row.owner == owner then
    -- Its reply was lost, and by now the lease may be as well: the run that begins needs a whole one.
    renew_lease(key, row, NOW + lease)
    save(key, row)
    return row.exhausted == 1 and exhausted() or answer('won')
  elseif row.lease_until > NOW then
    return answer('busy', row.lease_until - NOW, 'running')
  elseif row.exhausted == 1 then
    return exhaust()
  end
  local crashed = lapse()
  local alone = row.suspect == 1 or not needs_lock
  if (crashed and alone and row.crashes >= max_crashes) or row.attempts >= max_attempts then
    return exhaust()
  end
  return start()
end

local function seen(word)
  return (' ' .. row.seen_ids .. ' '):find(' ' .. word .. ' ', 1, true) ~= nil
end

-- Whether the message ran in this generation: then it cannot have other arguments.
local function ran(id)
  return row.message_id == id or seen(one_word(id))
end

local function stale(id)
  return ran(id) or seen(FORMER .. one_word(id))
end

local function new_generation()
  local fence, generation, letter_id, former = row.fence, row.generation, row.letter_id, ids_so_far(FORMER)
  row = fresh(WORK_AT)
  row.fence, row.generation, row.seen_ids = fence, generation + 1, former
  return start(letter_id)
end

local function differ()
  return row.payload_hash ~= '' and payload_hash ~= '' and row.payload_hash ~= payload_hash
end

if not row then
  row = fresh(WORK_AT)
  return start()
elseif row.state == 'dead' then
  return stale(message_id) and answer('dead') or new_generation()
elseif differ() and not ran(message_id) then
  return answer('mismatch')
elseif row.state == 'done' then
  return answer('done')
elseif row.state == 'running' then
  return meet_running()
elseif row.not_before > NOW then
  return answer('early', row.not_before - NOW)
elseif row.attempts >= max_attempts or row.crashes >= max_crashes then
  -- Whoever put these crashes on a record that waits knew the culprit: it needs no further proof.
  return exhaust()
end
return start()
