-- What every script about records shares. KEYS[1] is the prefix of this contract's keys: it carries their common hash
-- tag, so that one node of a cluster has them all and scripts may name the rest themselves. ARGV[1] is the injected time.
-- The order of FIELDS and WORK is that of `Row` and `Work` in stores/base.py (a test compares them).
local FIELDS = {
  'state', 'owner', 'fence', 'lease_until', 'not_before', 'attempts', 'crashes', 'interruptions', 'exhausted',
  'suspect', 'draining', 'slot', 'generation', 'replays', 'letter_id', 'message_id', 'seen_ids', 'payload_hash',
  'message_type', 'key', 'correlation_id', 'causation_id', 'subject', 'worker', 'has_result', 'result', 'last_error',
  'progress', 'note', 'beat_at', 'created_at', 'started_at', 'updated_at', 'expires_at',
}
local WORK = {
  'message_id', 'message_type', 'key', 'payload_hash', 'correlation_id', 'causation_id', 'subject', 'worker',
}

local PREFIX = KEYS[1]
local SUSPECTS = PREFIX .. 's'

-- The server's clock in milliseconds, unless a test injects one. Under an injected clock a key must not vanish by the
-- server's own, so its time to live gets an hour on top.
local NOW, SLACK
if ARGV[1] == '' then
  local time = redis.call('TIME')
  NOW, SLACK = time[1] * 1000 + math.floor(time[2] / 1000), 0
else
  NOW, SLACK = tonumber(ARGV[1]), 3600000
end

local function record_key(key)
  return PREFIX .. 'r:' .. key
end

local function place_key(key)
  return PREFIX .. 'e:' .. key
end

local function slot_key(name)
  return PREFIX .. 'c:' .. name
end

local function pack(from, names)
  local packed = {}
  for i = 1, #names do
    packed[i] = from[names[i]]
  end
  return packed
end

local function put(key, value, expires_at, slack)
  redis.call('SET', key, cmsgpack.pack(value), 'PX', math.max(1, expires_at - NOW) + slack)
end

-- Also what has expired, as a second value, and its size.
local function fetch(key, names)
  local raw = redis.call('GET', key)
  if not raw then
    return nil, nil, 0
  end
  local packed, named = cmsgpack.unpack(raw), {}
  for i = 1, #names do
    named[names[i]] = packed[i]
  end
  return named.expires_at > NOW and named or nil, named, #raw
end

local function load(key)
  return (fetch(record_key(key), FIELDS))
end

local function save(key, row)
  put(record_key(key), pack(row, FIELDS), row.expires_at, SLACK)
end

local function empty_row()
  return {
    state = 'running', owner = '', fence = 0, lease_until = 0, not_before = 0, attempts = 0, crashes = 0,
    interruptions = 0, exhausted = 0, suspect = 0, draining = 0, slot = '', generation = 0, replays = 0,
    letter_id = '', message_id = '', seen_ids = '', payload_hash = '', message_type = '', key = '',
    correlation_id = '', causation_id = '', subject = '', worker = '', has_result = 0, result = '', last_error = '',
    progress = -1, note = '', beat_at = 0, created_at = NOW, started_at = 0, updated_at = 0, expires_at = 0,
  }
end

-- A row with nothing but the work in it; `at` is where the work's fields begin in ARGV.
local function fresh(at)
  local row = empty_row()
  for i = 1, #WORK do
    row[WORK[i]] = ARGV[at + i - 1]
  end
  return row
end

-- Places with a lease (concurrency slots, the suspect lock): a sorted set of records by the end of their lease.
local function places_taken(places, besides)
  redis.call('ZREMRANGEBYSCORE', places, '-inf', NOW)
  local taken = redis.call('ZCARD', places)
  return redis.call('ZSCORE', places, besides) and taken - 1 or taken
end

local function take_place(places, key, lease_until)
  redis.call('ZADD', places, lease_until, key)
  local ttl = lease_until - NOW + SLACK
  if redis.call('PTTL', places) < ttl then
    redis.call('PEXPIRE', places, ttl)
  end
end

local function take_places(key, row)
  if row.suspect == 1 then
    take_place(SUSPECTS, key, row.lease_until)
  end
  if row.slot ~= '' then
    take_place(slot_key(row.slot), key, row.lease_until)
  end
end

local function leave_places(key, row)
  if row.suspect == 1 then
    redis.call('ZREM', SUSPECTS, key)
  end
  if row.slot ~= '' then
    redis.call('ZREM', slot_key(row.slot), key)
  end
  row.suspect, row.slot = 0, ''
end

local function renew_lease(key, row, lease_until)
  row.lease_until, row.expires_at = lease_until, math.max(row.expires_at, lease_until)
  take_places(key, row)
end

local function owns(row, owner, fence)
  return row.owner == owner and row.fence == fence
end

-- The row that a run is about to end: as stored, or made anew if the store forgot it (a flush, a failover).
-- ARGV: now, key, owner, fence, attempt, keep, and the work from `work_at` on.
local function ended_row(work_at)
  local row = load(ARGV[2])
  if not row then
    row = fresh(work_at)
    row.owner, row.fence, row.attempts, row.started_at = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), NOW
  end
  return row
end

-- Whether this owner may end the run in `target`: 'ok', 'again', 'lost' or 'invalid'.
local function ending(row, target)
  if not owns(row, ARGV[3], tonumber(ARGV[4])) then
    return 'lost'
  elseif row.state == target then
    return 'again'
  elseif row.state ~= 'running' or (row.exhausted == 1 and target ~= 'dead') then
    return 'invalid'
  end
  return 'ok'
end

local function settle(key, row, state, keep)
  leave_places(key, row)
  row.state, row.lease_until, row.not_before, row.exhausted, row.draining = state, 0, 0, 0, 0
  row.updated_at, row.expires_at = NOW, NOW + keep
end

local PLACE = { 'token', 'message_id', 'payload_hash', 'confirmed', 'expires_at' }

local function load_place(key)
  return (fetch(place_key(key), PLACE))
end

local function save_place(key, token, message_id, payload_hash, confirmed, ttl)
  put(place_key(key), { token, message_id, payload_hash, confirmed, NOW + ttl }, NOW + ttl, SLACK)
end

-- The enqueue's reservation goes with its work, unless it is another message's by now.
local function release_place(key, message_id)
  local place = key ~= '' and load_place(key)
  if place and place.message_id == message_id then
    return redis.call('DEL', place_key(key))
  end
  return 0
end
