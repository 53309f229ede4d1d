-- name: place
SELECT token, message_id, payload_hash, confirmed, expires_at FROM places WHERE store_key = ? AND expires_at > ?;

-- name: put_place
INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?, ?, ?);

-- name: drop_place
DELETE FROM places WHERE store_key = ?;

-- name: drop_place_of
DELETE FROM places WHERE store_key = ? AND message_id = ?;

-- name: slots_taken
SELECT count(*) FROM records
WHERE slot = ? AND slot <> '' AND store_key <> ? AND state = 'running' AND lease_until > ?;

-- name: suspect_elsewhere
SELECT 1 FROM records
WHERE suspect = 1 AND store_key <> ? AND state = 'running' AND lease_until > ? LIMIT 1;

-- name: letter
SELECT state, store_key, generation, replays, failed_at, expires_at, closed_at, closed_by, closed_reason, body
FROM letters WHERE id = ? AND expires_at > ?;

-- name: drop_letter
DELETE FROM letters WHERE id = ?;

-- name: put_letter
INSERT INTO letters
VALUES (?, 1, 'open', ?, ?, ?, ?, ?, 0, '', '', ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: replaying
UPDATE letters SET state = 'replaying', closed_by = ?, closed_reason = ? WHERE id = ?;

-- name: close_replaying
UPDATE letters SET state = 'replayed', is_open = 0, closed_at = ? WHERE id = ? AND state = 'replaying';

-- name: supersede
UPDATE letters SET state = 'superseded', is_open = 0, closed_at = ? WHERE id = ? AND is_open = 1;

-- name: discard
UPDATE letters SET state = 'discarded', is_open = 0, closed_at = ?, closed_by = ?, closed_reason = ? WHERE id = ?;

-- name: oldest
SELECT min(failed_at) FROM letters WHERE is_open = 1;

-- name: reasons
SELECT reason, count FROM letter_counts WHERE is_open = 1 AND count > 0;

-- name: expire_records
DELETE FROM records
WHERE store_key IN (SELECT store_key FROM records WHERE expires_at <= ? ORDER BY expires_at LIMIT ?);

-- name: expire_places
DELETE FROM places
WHERE store_key IN (SELECT store_key FROM places WHERE expires_at <= ? ORDER BY expires_at LIMIT ?);

-- name: expire_letters
DELETE FROM letters WHERE id IN (SELECT id FROM letters WHERE expires_at <= ? ORDER BY expires_at LIMIT ?);
