-- Claims, heartbeats and the ends of a run. Names and the order of locks: see 0002_enqueue.sql.

-- A message id as one word among others: "a b" must not make a stranger called "b" known.
CREATE FUNCTION {schema}.one_word(p_id text) RETURNS text LANGUAGE sql IMMUTABLE AS $body$
    SELECT replace(replace(p_id, '%', '%25'), ' ', '%20')
$body$;


CREATE FUNCTION {schema}.claim(
    p_now bigint, p_key text, p_owner text, p_lease bigint, p_keep bigint,
    p_message_id text, p_message_type text, p_work_key text, p_payload_hash text, p_correlation_id text,
    p_causation_id text, p_subject text, p_worker text,
    p_attempts bigint, p_crashes bigint, p_interruptions bigint, p_suspects boolean, p_slot text, p_slots bigint,
    OUT o_outcome text, OUT o_fence bigint, OUT o_attempt bigint, OUT o_crashes bigint, OUT o_wait double precision,
    OUT o_reason text, OUT o_message_id text, OUT o_has_result boolean, OUT o_result bytea
) LANGUAGE plpgsql AS $body$
DECLARE
    -- With a single permitted crash every first run would need the lock, and the fleet would run one task at a time.
    c_needs_lock CONSTANT boolean := p_suspects AND p_crashes > 1;
    c_former CONSTANT text := '%-';  -- FORMER
    v_now bigint := coalesce(p_now, {schema}.clock());
    v_full boolean := false;
    v_crashed boolean := false;
    v_suspect boolean;
    v_superseded text := '';
    v_ids text[];
    v_word text;
    v_ran boolean;
    r {schema}.records;
BEGIN
    o_fence := 0; o_attempt := 0; o_crashes := 0; o_wait := 0; o_reason := ''; o_message_id := p_message_id;
    o_has_result := false; o_result := '';

    IF p_slot <> '' THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('{schema}.slot.' || p_slot, 0));
        v_now := coalesce(p_now, {schema}.clock());
        SELECT count(*) >= p_slots INTO v_full FROM {schema}.records t
         WHERE hashtextextended(t.slot, 0) = hashtextextended(p_slot, 0) AND t.slot <> '' AND t.slot = p_slot
           AND t.store_key <> p_key AND t.state = 'running' AND t.lease_until > v_now;
    END IF;

    LOOP
        IF NOT v_full THEN
            INSERT INTO {schema}.records (
                store_key, owner, fence, lease_until, attempts, slot, message_id, payload_hash, message_type, key,
                correlation_id, causation_id, subject, worker, created_at, started_at, updated_at, expires_at)
            VALUES (
                p_key, p_owner, 1, v_now + p_lease, 1, p_slot, p_message_id, p_payload_hash, p_message_type, p_work_key,
                p_correlation_id, p_causation_id, p_subject, p_worker, v_now, v_now, v_now, v_now + p_keep)
            ON CONFLICT (store_key) DO NOTHING;
            IF FOUND THEN
                o_outcome := 'won'; o_fence := 1; o_attempt := 1;
                RETURN;
            END IF;
        END IF;
        SELECT * INTO r FROM {schema}.records t WHERE t.store_key = p_key FOR UPDATE;
        v_now := coalesce(p_now, {schema}.clock());
        EXIT WHEN r.expires_at > v_now;
        IF v_full THEN
            o_outcome := 'busy'; o_wait := p_lease / 1000.0::double precision; o_reason := 'slots';
            RETURN;
        END IF;
        DELETE FROM {schema}.records t WHERE t.store_key = p_key AND t.expires_at <= v_now;
    END LOOP;

    v_ids := string_to_array(r.seen_ids, ' ');
    v_word := {schema}.one_word(p_message_id);
    v_ran := p_message_id = r.message_id OR v_word = ANY (v_ids);
    IF r.state = 'dead' AND NOT v_ran AND c_former || v_word <> ALL (v_ids) THEN
        -- A fresh enqueue of dead work: a new generation, which keeps nothing but the fence and the ids that ran.
        v_superseded := r.letter_id;
        r.generation := r.generation + 1;
        r.attempts := 0; r.crashes := 0; r.interruptions := 0; r.replays := 0; r.letter_id := '';
        v_ids := ARRAY(SELECT CASE WHEN left(i.word, 2) = c_former THEN i.word ELSE c_former || i.word END
                         FROM unnest(v_ids || {schema}.one_word(r.message_id)) WITH ORDINALITY AS i (word, n)
                        ORDER BY i.n);
        r.message_id := p_message_id; r.payload_hash := p_payload_hash;
        r.message_type := p_message_type; r.key := p_work_key; r.correlation_id := p_correlation_id;
        r.causation_id := p_causation_id; r.subject := p_subject;
        r.has_result := false; r.result := ''; r.last_error := ''; r.created_at := v_now;
    ELSE
        o_fence := r.fence; o_attempt := r.attempts; o_crashes := r.crashes; o_message_id := r.message_id;
        IF r.state = 'dead' THEN
            o_outcome := 'dead';
            RETURN;
        ELSIF NOT v_ran AND r.payload_hash <> '' AND p_payload_hash <> '' AND r.payload_hash <> p_payload_hash THEN
            o_outcome := 'mismatch';
            RETURN;
        ELSIF r.state = 'done' THEN
            o_outcome := 'done'; o_has_result := r.has_result; o_result := r.result;
            RETURN;
        ELSIF r.state = 'running' THEN
            IF r.owner = p_owner THEN
                -- Its reply was lost, and by now the lease may be as well: the run that begins needs a whole one.
                UPDATE {schema}.records t
                   SET lease_until = v_now + p_lease, expires_at = greatest(t.expires_at, v_now + p_lease)
                 WHERE t.store_key = p_key;
                o_outcome := CASE WHEN r.exhausted THEN 'exhausted' ELSE 'won' END;
                o_reason := CASE WHEN NOT r.exhausted THEN '' WHEN r.crashes >= p_crashes THEN 'crashes'
                                 ELSE 'attempts' END;
                RETURN;
            ELSIF r.lease_until > v_now THEN
                o_outcome := 'busy'; o_reason := 'running';
                o_wait := (r.lease_until - v_now) / 1000.0::double precision;
                RETURN;
            ELSIF NOT r.exhausted THEN
                -- A lease that ran out: an announced shutdown gives the attempt back, anything else is a crash.
                IF r.draining AND r.interruptions < p_interruptions THEN
                    r.interruptions := r.interruptions + 1;
                    r.attempts := r.attempts - 1;
                ELSE
                    r.crashes := r.crashes + 1;
                    v_crashed := true;
                END IF;
                r.exhausted := r.attempts >= p_attempts
                    OR (v_crashed AND (r.suspect OR NOT c_needs_lock) AND r.crashes >= p_crashes);
            END IF;
        ELSIF r.not_before > v_now THEN
            o_outcome := 'early'; o_wait := (r.not_before - v_now) / 1000.0::double precision;
            RETURN;
        ELSE
            -- Whoever put these crashes on a record that waits knew the culprit: it needs no further proof.
            r.exhausted := r.attempts >= p_attempts OR r.crashes >= p_crashes;
        END IF;
    END IF;

    o_attempt := r.attempts; o_crashes := r.crashes; o_message_id := r.message_id; o_fence := r.fence;
    IF r.exhausted THEN
        -- No attempt is left: whoever asks gets the record to bury it, without running it.
        UPDATE {schema}.records t
           SET state = 'running', owner = p_owner, fence = r.fence + 1, lease_until = v_now + p_lease, not_before = 0,
               draining = false, progress = -1, note = '', beat_at = 0, updated_at = v_now, expires_at = v_now + p_keep,
               exhausted = true, suspect = false, slot = '',
               attempts = r.attempts, crashes = r.crashes, interruptions = r.interruptions
         WHERE t.store_key = p_key;
        o_outcome := 'exhausted'; o_fence := r.fence + 1;
        o_reason := CASE WHEN r.crashes >= p_crashes THEN 'crashes' ELSE 'attempts' END;
        RETURN;
    END IF;

    v_suspect := c_needs_lock AND r.crashes >= p_crashes - 1;
    IF v_full THEN
        o_reason := 'slots';
    ELSIF v_suspect THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('{schema}.suspects', 0));
        v_now := coalesce(p_now, {schema}.clock());
        PERFORM FROM {schema}.records t
          WHERE t.suspect AND t.store_key <> p_key AND t.state = 'running' AND t.lease_until > v_now;
        IF FOUND THEN
            o_reason := 'suspect';
        END IF;
    END IF;
    IF o_reason <> '' THEN
        o_outcome := 'busy'; o_wait := p_lease / 1000.0::double precision;
        RETURN;
    END IF;

    IF r.message_id <> p_message_id THEN
        v_ids := v_ids || {schema}.one_word(r.message_id);
    END IF;
    v_ids := v_ids[greatest(1, cardinality(v_ids) - 3):];  -- SEEN_IDS
    UPDATE {schema}.records t
       SET state = 'running', owner = p_owner, fence = r.fence + 1, lease_until = v_now + p_lease, not_before = 0,
           draining = false, progress = -1, note = '', beat_at = 0, updated_at = v_now, expires_at = v_now + p_keep,
           attempts = r.attempts + 1, crashes = r.crashes, interruptions = r.interruptions, started_at = v_now,
           suspect = v_suspect, slot = p_slot, exhausted = false, generation = r.generation, replays = r.replays,
           letter_id = r.letter_id, message_id = p_message_id,
           seen_ids = array_to_string(v_ids, ' '),
           payload_hash = CASE WHEN r.payload_hash <> '' THEN r.payload_hash ELSE p_payload_hash END,
           message_type = r.message_type, key = r.key, correlation_id = r.correlation_id,
           causation_id = r.causation_id, subject = r.subject, worker = p_worker, has_result = r.has_result,
           result = r.result, last_error = r.last_error, created_at = r.created_at
     WHERE t.store_key = p_key;
    IF v_superseded <> '' THEN
        UPDATE {schema}.letters l SET state = 'superseded', closed_at = v_now
         WHERE l.id = v_superseded AND l.state IN ('open', 'replaying');
    END IF;
    o_outcome := 'won'; o_fence := r.fence + 1; o_attempt := r.attempts + 1; o_message_id := p_message_id;
END
$body$;


-- All leases of a process in one call. Rows are locked in the order of their keys, so that two heartbeats that share
-- records (a take-over under way) cannot wait for each other.
CREATE FUNCTION {schema}.extend(
    p_now bigint, p_keys text[], p_owners text[], p_fences bigint[], p_leases bigint[], p_draining boolean[],
    p_progress bigint[], p_notes text[], p_silent_for bigint[],
    OUT o_answers text[]
) LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint;
    v_answer text;
    i integer;
BEGIN
    o_answers := array_fill('lost'::text, ARRAY[cardinality(p_keys)]);
    FOR i IN SELECT k.n FROM unnest(p_keys) WITH ORDINALITY AS k (store_key, n)
              ORDER BY k.store_key COLLATE "C", k.n LOOP
        v_now := coalesce(p_now, {schema}.clock());
        UPDATE {schema}.records r
           SET lease_until = v_now + p_leases[i], draining = p_draining[i],
               expires_at = greatest(r.expires_at, v_now + p_leases[i]),
               progress = CASE WHEN p_progress[i] >= 0 THEN p_progress[i] ELSE r.progress END,
               note = CASE WHEN p_progress[i] >= 0 THEN p_notes[i] ELSE r.note END,
               beat_at = CASE WHEN p_silent_for[i] >= 0 THEN v_now - p_silent_for[i] ELSE r.beat_at END
         WHERE r.store_key = p_keys[i] AND r.owner = p_owners[i] AND r.fence = p_fences[i]
           AND r.state = 'running' AND r.expires_at > v_now;
        IF FOUND THEN
            o_answers[i] := 'held';
        ELSE
            SELECT CASE WHEN r.owner = p_owners[i] AND r.fence = p_fences[i] THEN 'held' ELSE 'lost' END
              INTO v_answer FROM {schema}.records r WHERE r.store_key = p_keys[i] AND r.expires_at > v_now;
            o_answers[i] := coalesce(v_answer, 'missing');
        END IF;
    END LOOP;
END
$body$;


-- Whether the holder may end the run in `p_target`: ok, again, lost or invalid. After "ok" the record is there, running
-- and locked: if it was missing (a flush, a failover), it has been written from what the holder knows.
CREATE FUNCTION {schema}.ending(
    p_now bigint, p_target text, p_key text, p_owner text, p_fence bigint, p_attempt bigint,
    p_message_id text, p_message_type text, p_work_key text, p_payload_hash text, p_correlation_id text,
    p_causation_id text, p_subject text, p_worker text,
    OUT o_answer text, OUT o_state text
) LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint;
    r {schema}.records;
BEGIN
    LOOP
        SELECT * INTO r FROM {schema}.records t WHERE t.store_key = p_key FOR UPDATE;
        v_now := coalesce(p_now, {schema}.clock());
        EXIT WHEN r.expires_at > v_now;
        DELETE FROM {schema}.records t WHERE t.store_key = p_key AND t.expires_at <= v_now;
        -- Kept for a minute only in name: the caller sets the real expiry.
        INSERT INTO {schema}.records (
            store_key, owner, fence, attempts, message_id, payload_hash, message_type, key, correlation_id,
            causation_id, subject, worker, created_at, started_at, expires_at)
        VALUES (
            p_key, p_owner, p_fence, p_attempt, p_message_id, p_payload_hash, p_message_type, p_work_key,
            p_correlation_id, p_causation_id, p_subject, p_worker, v_now, v_now, v_now + 60000)
        ON CONFLICT (store_key) DO NOTHING;
    END LOOP;
    o_state := r.state;
    o_answer := CASE
        WHEN r.owner <> p_owner OR r.fence <> p_fence THEN 'lost'
        WHEN r.state = p_target THEN 'again'
        WHEN r.state <> 'running' OR (r.exhausted AND p_target <> 'dead') THEN 'invalid'
        ELSE 'ok' END;
END
$body$;


CREATE FUNCTION {schema}.complete(
    p_now bigint, p_key text, p_owner text, p_fence bigint, p_attempt bigint,
    p_message_id text, p_message_type text, p_work_key text, p_payload_hash text, p_correlation_id text,
    p_causation_id text, p_subject text, p_worker text,
    p_keep bigint, p_result bytea, p_reservation text,
    OUT o_answer text, OUT o_state text
) LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint;
    v_letter_id text;
BEGIN
    o_answer := 'ok'; o_state := 'running';
    LOOP
        v_now := coalesce(p_now, {schema}.clock());
        UPDATE {schema}.records r
           SET state = 'done', lease_until = 0, not_before = 0, exhausted = false, suspect = false, draining = false,
               slot = '', updated_at = v_now, expires_at = v_now + p_keep,
               has_result = p_result IS NOT NULL, result = coalesce(p_result, '')
         WHERE r.store_key = p_key AND r.owner = p_owner AND r.fence = p_fence
           AND r.state = 'running' AND NOT r.exhausted AND r.expires_at > v_now
        RETURNING r.letter_id INTO v_letter_id;
        EXIT WHEN FOUND;
        SELECT e.o_answer, e.o_state INTO o_answer, o_state FROM {schema}.ending(
            p_now, 'done', p_key, p_owner, p_fence, p_attempt, p_message_id, p_message_type, p_work_key,
            p_payload_hash, p_correlation_id, p_causation_id, p_subject, p_worker) e;
        IF o_answer <> 'ok' THEN
            RETURN;
        END IF;
    END LOOP;
    IF p_reservation <> '' THEN
        DELETE FROM {schema}.reservations s WHERE s.store_key = p_reservation AND s.message_id = p_message_id;
    END IF;
    IF v_letter_id <> '' THEN
        -- The replay has ended with its work, whether or not its operator lived to say so.
        UPDATE {schema}.letters l SET state = 'replayed', closed_at = v_now
         WHERE l.id = v_letter_id AND l.state = 'replaying';
    END IF;
END
$body$;


CREATE FUNCTION {schema}.retry(
    p_now bigint, p_key text, p_owner text, p_fence bigint, p_attempt bigint,
    p_message_id text, p_message_type text, p_work_key text, p_payload_hash text, p_correlation_id text,
    p_causation_id text, p_subject text, p_worker text,
    p_keep bigint, p_delay bigint, p_error text, p_ending text, p_interruptions bigint,
    OUT o_answer text, OUT o_state text
) LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint;
BEGIN
    SELECT e.o_answer, e.o_state INTO o_answer, o_state FROM {schema}.ending(
        p_now, 'waiting', p_key, p_owner, p_fence, p_attempt, p_message_id, p_message_type, p_work_key,
        p_payload_hash, p_correlation_id, p_causation_id, p_subject, p_worker) e;
    IF o_answer <> 'ok' THEN
        RETURN;
    END IF;
    v_now := coalesce(p_now, {schema}.clock());
    UPDATE {schema}.records r
       SET state = 'waiting', lease_until = 0, not_before = v_now + p_delay, exhausted = false, suspect = false,
           draining = false, slot = '', updated_at = v_now, expires_at = v_now + p_keep,
           interruptions = r.interruptions
               + (p_ending = 'interrupted' AND r.interruptions < p_interruptions)::integer,
           attempts = CASE WHEN p_ending = 'interrupted' AND r.interruptions < p_interruptions
                           THEN greatest(0, r.attempts - 1) ELSE r.attempts END,
           crashes = r.crashes + (p_ending = 'crashed')::integer,
           last_error = CASE WHEN p_error <> '' THEN p_error ELSE r.last_error END
     WHERE r.store_key = p_key;
END
$body$;


CREATE FUNCTION {schema}.get_record(p_now bigint, p_key text) RETURNS SETOF {schema}.records
LANGUAGE sql VOLATILE AS $body$
    SELECT * FROM {schema}.records r WHERE r.store_key = p_key AND r.expires_at > coalesce(p_now, {schema}.clock())
$body$;
