-- Dead letters: one packed string each, and sorted sets of their ids by the time they failed. Open letters are indexed
-- by every facet, closed ones only by time.
local LETTER = {
  'state', 'store_key', 'generation', 'replays', 'failed_at', 'expires_at', 'closed_at', 'closed_by', 'closed_reason',
  'key', 'causation_id', 'facets', 'body',
}
local FACETS, REASON = 8, 5
local OPEN, CLOSED, EXPIRY = PREFIX .. 'x:open', PREFIX .. 'x:closed', PREFIX .. 'x:expiry'
local REASONS = PREFIX .. 'x:reasons'
-- The body outlives its retention: the sweep needs the facets to clean the indexes.
local A_DAY = 86400000

local function letter_key(id)
  return PREFIX .. 'd:' .. id
end

local function facet_key(facet, value)
  return PREFIX .. 'x:' .. facet .. ':' .. (#value > 200 and redis.sha1hex(value) or value)
end

local function load_letter(id)
  return fetch(letter_key(id), LETTER)
end

local function save_letter(id, letter)
  put(letter_key(id), pack(letter, LETTER), letter.expires_at, A_DAY + SLACK)
end

local function is_open(letter)
  return letter.state == 'open' or letter.state == 'replaying'
end

local function each_facet(letter, command, ...)
  for facet = 1, FACETS do
    if letter.facets[facet] ~= '' then
      redis.call(command, facet_key(facet, letter.facets[facet]), ...)
    end
  end
end

local function remove_letter(id)
  local _, letter = load_letter(id)
  if letter then
    each_facet(letter, 'ZREM', id)
  else
    -- Nobody swept for a day, and the body is gone: at least the counts must be right.
    for _, reason in ipairs(redis.call('SMEMBERS', REASONS)) do
      redis.call('ZREM', facet_key(REASON, reason), id)
    end
  end
  redis.call('ZREM', OPEN, id)
  redis.call('ZREM', CLOSED, id)
  redis.call('ZREM', EXPIRY, id)
  redis.call('DEL', letter_key(id))
end

-- Remove what is past its retention. Every new letter sweeps a little, so nothing else has to.
local function sweep(limit)
  local ids = redis.call('ZRANGEBYSCORE', EXPIRY, '-inf', NOW, 'LIMIT', 0, limit)
  for _, id in ipairs(ids) do
    remove_letter(id)
  end
  return #ids
end

-- In place of one that had this id before. `at` is where the facets begin in ARGV; the letter's own key and cause
-- follow them.
local function file_letter(id, body, at, keep, store_key, generation, replays)
  local letter = {
    state = 'open', store_key = store_key, generation = generation, replays = replays, failed_at = NOW,
    expires_at = NOW + keep, closed_at = 0, closed_by = '', closed_reason = '', key = ARGV[at + FACETS],
    causation_id = ARGV[at + FACETS + 1], facets = {}, body = body,
  }
  for facet = 1, FACETS do
    letter.facets[facet] = ARGV[at + facet - 1]
  end
  if redis.call('ZSCORE', EXPIRY, id) then
    remove_letter(id)
  end
  save_letter(id, letter)
  redis.call('ZADD', OPEN, NOW, id)
  redis.call('ZADD', EXPIRY, letter.expires_at, id)
  redis.call('SADD', REASONS, letter.facets[REASON])
  each_facet(letter, 'ZADD', NOW, id)
  sweep(20)
end

local function close_letter(id, letter, state)
  letter.state, letter.closed_at = state, NOW
  redis.call('ZREM', OPEN, id)
  each_facet(letter, 'ZREM', id)
  redis.call('ZADD', CLOSED, letter.failed_at, id)
  save_letter(id, letter)
end

-- The work has ended: so has the replay that brought it back, whether or not its operator lived to say so.
local function close_replay(id)
  local letter = id ~= '' and load_letter(id)
  if letter and letter.state == 'replaying' then
    close_letter(id, letter, 'replayed')
  end
end

local function letter_reply(id, letter)
  return {
    id, letter.state, letter.store_key, letter.generation, letter.replays, letter.failed_at, letter.expires_at,
    letter.closed_at, letter.closed_by, letter.closed_reason, letter.body,
  }
end
