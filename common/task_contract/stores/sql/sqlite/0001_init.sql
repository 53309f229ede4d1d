-- Whose file this is: the namespace that made it.
CREATE TABLE about (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- Times are milliseconds since the epoch. The columns of `records` are the fields of `Row` in stores/base.py.
CREATE TABLE records (
    store_key TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    owner TEXT NOT NULL,
    fence INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    not_before INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    interruptions INTEGER NOT NULL,
    exhausted INTEGER NOT NULL,
    suspect INTEGER NOT NULL,
    draining INTEGER NOT NULL,
    slot TEXT NOT NULL,
    generation INTEGER NOT NULL,
    replays INTEGER NOT NULL,
    letter_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    seen_ids TEXT NOT NULL,
    payload_hash TEXT NOT NULL,
    message_type TEXT NOT NULL,
    key TEXT NOT NULL,
    correlation_id TEXT NOT NULL,
    causation_id TEXT NOT NULL,
    subject TEXT NOT NULL,
    worker TEXT NOT NULL,
    has_result INTEGER NOT NULL,
    result BLOB NOT NULL,
    last_error TEXT NOT NULL,
    progress INTEGER NOT NULL,
    note TEXT NOT NULL,
    beat_at INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX records_expiry ON records (expires_at);
CREATE INDEX records_slots ON records (slot) WHERE slot <> '';
CREATE INDEX records_suspects ON records (suspect) WHERE suspect = 1;

CREATE TABLE places (
    store_key TEXT PRIMARY KEY,
    token TEXT NOT NULL,
    message_id TEXT NOT NULL,
    payload_hash TEXT NOT NULL,
    confirmed INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX places_expiry ON places (expires_at);

CREATE TABLE letters (
    id TEXT PRIMARY KEY,
    is_open INTEGER NOT NULL,
    state TEXT NOT NULL,
    store_key TEXT NOT NULL,
    generation INTEGER NOT NULL,
    replays INTEGER NOT NULL,
    failed_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    closed_at INTEGER NOT NULL,
    closed_by TEXT NOT NULL,
    closed_reason TEXT NOT NULL,
    message_type TEXT NOT NULL,
    queue TEXT NOT NULL,
    error_type TEXT NOT NULL,
    "group" TEXT NOT NULL,
    reason TEXT NOT NULL,
    correlation_id TEXT NOT NULL,
    subject TEXT NOT NULL,
    message_id TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX letters_time ON letters (is_open, failed_at, id);
CREATE INDEX letters_message_type ON letters (is_open, message_type, failed_at, id);
CREATE INDEX letters_queue ON letters (is_open, queue, failed_at, id);
CREATE INDEX letters_error_type ON letters (is_open, error_type, failed_at, id);
CREATE INDEX letters_group ON letters (is_open, "group", failed_at, id);
CREATE INDEX letters_reason ON letters (is_open, reason, failed_at, id);
CREATE INDEX letters_correlation_id ON letters (is_open, correlation_id, failed_at, id);
CREATE INDEX letters_subject ON letters (is_open, subject, failed_at, id);
CREATE INDEX letters_message_id ON letters (is_open, message_id, failed_at, id);
CREATE INDEX letters_expiry ON letters (expires_at);

-- How many letters of each kind there are, so that counting does not mean reading a million of them.
CREATE TABLE letter_counts (
    is_open INTEGER NOT NULL,
    reason TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (is_open, reason)
) WITHOUT ROWID;
CREATE TRIGGER letters_added AFTER INSERT ON letters BEGIN
    INSERT INTO letter_counts VALUES (NEW.is_open, NEW.reason, 1)
    ON CONFLICT DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER letters_removed AFTER DELETE ON letters BEGIN
    UPDATE letter_counts SET count = count - 1 WHERE is_open = OLD.is_open AND reason = OLD.reason;
END;
CREATE TRIGGER letters_moved AFTER UPDATE OF is_open ON letters WHEN NEW.is_open <> OLD.is_open BEGIN
    UPDATE letter_counts SET count = count - 1 WHERE is_open = OLD.is_open AND reason = OLD.reason;
    INSERT INTO letter_counts VALUES (NEW.is_open, NEW.reason, 1)
    ON CONFLICT DO UPDATE SET count = count + 1;
END;
