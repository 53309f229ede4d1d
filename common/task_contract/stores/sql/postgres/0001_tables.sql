-- Times are milliseconds since the epoch; 0 and '' stand for "nothing", as in stores/base.py.
-- Texts are compared byte by byte (COLLATE "C"): the same order on every server, and the order the other stores have.

-- The columns after the key have the names and the order of `Row`.
-- A heartbeat changes lease_until, draining, progress, note and beat_at. None of them is in an index and a fifth of
-- each page is left free, so a heartbeat is a HOT update: it touches one page and no index.
CREATE TABLE {schema}.records (
    store_key text COLLATE "C" PRIMARY KEY,
    state text COLLATE "C" NOT NULL DEFAULT 'running',
    owner text COLLATE "C" NOT NULL DEFAULT '',
    fence bigint NOT NULL DEFAULT 0,
    lease_until bigint NOT NULL DEFAULT 0,
    not_before bigint NOT NULL DEFAULT 0,
    attempts bigint NOT NULL DEFAULT 0,
    crashes bigint NOT NULL DEFAULT 0,
    interruptions bigint NOT NULL DEFAULT 0,
    exhausted boolean NOT NULL DEFAULT false,
    suspect boolean NOT NULL DEFAULT false,
    draining boolean NOT NULL DEFAULT false,
    slot text COLLATE "C" NOT NULL DEFAULT '',
    generation bigint NOT NULL DEFAULT 0,
    replays bigint NOT NULL DEFAULT 0,
    letter_id text COLLATE "C" NOT NULL DEFAULT '',
    message_id text COLLATE "C" NOT NULL DEFAULT '',
    seen_ids text COLLATE "C" NOT NULL DEFAULT '',
    payload_hash text COLLATE "C" NOT NULL DEFAULT '',
    message_type text COLLATE "C" NOT NULL DEFAULT '',
    key text COLLATE "C" NOT NULL DEFAULT '',
    correlation_id text COLLATE "C" NOT NULL DEFAULT '',
    causation_id text COLLATE "C" NOT NULL DEFAULT '',
    subject text COLLATE "C" NOT NULL DEFAULT '',
    worker text COLLATE "C" NOT NULL DEFAULT '',
    has_result boolean NOT NULL DEFAULT false,
    result bytea NOT NULL DEFAULT '',
    last_error text COLLATE "C" NOT NULL DEFAULT '',
    progress bigint NOT NULL DEFAULT -1,
    note text COLLATE "C" NOT NULL DEFAULT '',
    beat_at bigint NOT NULL DEFAULT 0,
    created_at bigint NOT NULL DEFAULT 0,
    started_at bigint NOT NULL DEFAULT 0,
    updated_at bigint NOT NULL DEFAULT 0,
    expires_at bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 80);

CREATE INDEX records_expiry ON {schema}.records (expires_at);

-- Only running records have a slot or are suspects (leaving "running" clears both), so these two hold what is being
-- executed now and nothing else. Hashed: a name has no business limit, an index entry has.
CREATE INDEX records_slots ON {schema}.records (hashtextextended(slot, 0)) WHERE slot <> '';
CREATE INDEX records_suspects ON {schema}.records (suspect) WHERE suspect;

CREATE TABLE {schema}.reservations (
    store_key text COLLATE "C" PRIMARY KEY,
    token text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    payload_hash text COLLATE "C" NOT NULL,
    confirmed boolean NOT NULL,
    expires_at bigint NOT NULL
) WITH (fillfactor = 80);

CREATE INDEX reservations_expiry ON {schema}.reservations (expires_at);

-- What changes of a dead letter, what it is filtered by (FACETS), what a lost record is made from again, and all of it
-- as the JSON that DeadLetter.body() made. SQL never parses that: it may hold what no text in a database can.
CREATE TABLE {schema}.letters (
    id text COLLATE "C" PRIMARY KEY,
    store_key text COLLATE "C" NOT NULL DEFAULT '',
    state text COLLATE "C" NOT NULL DEFAULT 'open',
    closed boolean NOT NULL GENERATED ALWAYS AS (state NOT IN ('open', 'replaying')) STORED,
    generation bigint NOT NULL DEFAULT 0,
    replays bigint NOT NULL DEFAULT 0,
    failed_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    closed_at bigint NOT NULL DEFAULT 0,
    closed_by text COLLATE "C" NOT NULL DEFAULT '',
    closed_reason text COLLATE "C" NOT NULL DEFAULT '',
    message_type text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    error_type text COLLATE "C" NOT NULL,
    "group" text COLLATE "C" NOT NULL,
    reason text COLLATE "C" NOT NULL,
    correlation_id text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    causation_id text COLLATE "C" NOT NULL,
    body bytea NOT NULL
);

-- A page is a range of one of these, read backwards: the same work at a thousand letters and at a million. Facets are
-- hashed (the page compares the text as well): an index entry has a limit of 2,704 bytes, an error's text has none.
CREATE INDEX letters_page ON {schema}.letters (closed, failed_at, id);
CREATE INDEX letters_message_type ON {schema}.letters (hashtextextended(message_type, 0), closed, failed_at, id);
CREATE INDEX letters_queue ON {schema}.letters (hashtextextended(queue, 0), closed, failed_at, id);
CREATE INDEX letters_error_type ON {schema}.letters (hashtextextended(error_type, 0), closed, failed_at, id);
CREATE INDEX letters_group ON {schema}.letters (hashtextextended("group", 0), closed, failed_at, id);
CREATE INDEX letters_reason ON {schema}.letters (hashtextextended(reason, 0), closed, failed_at, id);
CREATE INDEX letters_correlation_id ON {schema}.letters (hashtextextended(correlation_id, 0), closed, failed_at, id);
CREATE INDEX letters_subject ON {schema}.letters (hashtextextended(subject, 0), closed, failed_at, id);
CREATE INDEX letters_message_id ON {schema}.letters (hashtextextended(message_id, 0), closed, failed_at, id);
CREATE INDEX letters_expiry ON {schema}.letters (expires_at) INCLUDE (closed, reason);

-- How many open letters there are, by reason, as changes to be summed up. Counting a million letters reads a million
-- index entries, and a single row per reason would make all burials of that reason wait for each other (and two that
-- touch two reasons in a different order, for ever). Changes are only ever added; `fold` sums up what has gathered.
-- The primary key is for logical replication, which refuses to delete from a table without one.
CREATE TABLE {schema}.tallies (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reason text COLLATE "C" NOT NULL,
    change bigint NOT NULL
);
