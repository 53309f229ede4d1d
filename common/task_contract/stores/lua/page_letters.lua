-- uses: record, letters
-- ARGV: now, closed, limit, cursor's time or '', cursor's id, since or '', until or '', then a value or '' for each facet.
-- Newest first. One index is walked, the smallest that a filter names; the other filters are checked on the way, for so
-- many letters and bytes at the most (nobody else is served meanwhile): a page may come out short, with a cursor to go
-- on from.
local LETTERS_AT_MOST, BYTES_AT_MOST, FACETS_AT = 500, 2000000, 8
local closed, limit = ARGV[2] == '1', tonumber(ARGV[3])
local cursor_at, cursor_id = tonumber(ARGV[4]), ARGV[5]
local earliest = ARGV[6] == '' and '-inf' or ARGV[6]

local function smallest_index()
  local index, size = closed and CLOSED or OPEN, math.huge
  for facet = 1, closed and 0 or FACETS do
    local value = ARGV[FACETS_AT + facet - 1]
    local candidate = value ~= '' and facet_key(facet, value)
    local count = candidate and redis.call('ZCARD', candidate) or math.huge
    if count < size then
      index, size = candidate, count
    end
  end
  return index
end

local function matches(letter)
  if is_open(letter) == closed then
    return false
  end
  for facet = 1, FACETS do
    local value = ARGV[FACETS_AT + facet - 1]
    if value ~= '' and letter.facets[facet] ~= value then
      return false
    end
  end
  return true
end

local function latest()
  if cursor_at and not (ARGV[7] ~= '' and tonumber(ARGV[7]) <= cursor_at) then
    return ARGV[4]
  end
  return ARGV[7] == '' and '+inf' or '(' .. ARGV[7]
end

sweep(100)
local index, newest = smallest_index(), latest()
local found, offset, scanned, bytes = {}, 0, 0, 0
local last_at, last_id = '', ''
while true do
  local ids = redis.call('ZREVRANGEBYSCORE', index, newest, earliest, 'WITHSCORES', 'LIMIT', offset, 100)
  for i = 1, #ids, 2 do
    local id, at = ids[i], tonumber(ids[i + 1])
    if not (cursor_at and at == cursor_at and id >= cursor_id) then
      if #found == limit or scanned == LETTERS_AT_MOST or bytes >= BYTES_AT_MOST then
        return { found, last_at, last_id }
      end
      local letter, _, size = load_letter(id)
      if not letter and not redis.call('ZSCORE', EXPIRY, id) then
        redis.call('ZREM', index, id)
        offset = offset - 1
      elseif letter and matches(letter) then
        found[#found + 1] = letter_reply(id, letter)
      end
      scanned, bytes, last_at, last_id = scanned + 1, bytes + size, ids[i + 1], id
    end
  end
  if #ids < 200 then
    return { found, '', '' }
  end
  offset = offset + 100
end
