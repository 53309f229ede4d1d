-- Dead letters. Names and the order of locks: see 0002_enqueue.sql.

-- A trigger, so that the count is right whoever writes: an operator's DELETE included.
CREATE FUNCTION {schema}.tally() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        DELETE FROM {schema}.tallies;
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO {schema}.tallies (reason, change)
        SELECT a.reason, count(*) FROM added a WHERE NOT a.closed GROUP BY a.reason;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO {schema}.tallies (reason, change)
        SELECT r.reason, -count(*) FROM removed r WHERE NOT r.closed GROUP BY r.reason;
    ELSE
        INSERT INTO {schema}.tallies (reason, change)
        SELECT c.reason, sum(c.change)
          FROM (SELECT a.reason, 1 AS change FROM added a WHERE NOT a.closed
                UNION ALL SELECT r.reason, -1 FROM removed r WHERE NOT r.closed) c
         GROUP BY c.reason HAVING sum(c.change) <> 0;
    END IF;
    RETURN NULL;
END
$body$;

CREATE TRIGGER tally_insert AFTER INSERT ON {schema}.letters
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION {schema}.tally();
CREATE TRIGGER tally_update AFTER UPDATE ON {schema}.letters
    REFERENCING OLD TABLE AS removed NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION {schema}.tally();
CREATE TRIGGER tally_delete AFTER DELETE ON {schema}.letters
    REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION {schema}.tally();
CREATE TRIGGER tally_truncate AFTER TRUNCATE ON {schema}.letters
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.tally();

-- Sum up the changes once they are many. A transaction that adds some meanwhile is neither seen nor lost.
CREATE FUNCTION {schema}.fold() RETURNS void LANGUAGE plpgsql AS $body$
BEGIN
    IF (SELECT count(*) FROM (SELECT FROM {schema}.tallies LIMIT 1001) t) > 1000
       AND pg_try_advisory_xact_lock(hashtextextended('{schema}.fold', 0)) THEN
        WITH gone AS (DELETE FROM {schema}.tallies RETURNING reason, change)
        INSERT INTO {schema}.tallies (reason, change)
        SELECT g.reason, sum(g.change) FROM gone g GROUP BY g.reason HAVING sum(g.change) <> 0;
    END IF;
END
$body$;


CREATE FUNCTION {schema}.put_letter(
    p_now bigint, p_keep bigint, p_id text, p_body bytea, p_message_type text, p_queue text, p_error_type text,
    p_group text, p_reason text, p_correlation_id text, p_subject text, p_message_id text, p_work_key text,
    p_causation_id text,
    p_store_key text DEFAULT '', p_generation bigint DEFAULT 0, p_replays bigint DEFAULT 0
) RETURNS void LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint := coalesce(p_now, {schema}.clock());
BEGIN
    LOOP
        INSERT INTO {schema}.letters (
            id, store_key, generation, replays, failed_at, expires_at, message_type, queue, error_type, "group",
            reason, correlation_id, subject, message_id, key, causation_id, body)
        VALUES (
            p_id, p_store_key, p_generation, p_replays, v_now, v_now + p_keep, p_message_type, p_queue, p_error_type,
            p_group, p_reason, p_correlation_id, p_subject, p_message_id, p_work_key, p_causation_id, p_body)
        ON CONFLICT (id) DO NOTHING;
        EXIT WHEN FOUND;
        -- One that has expired is in nobody's way. (Housekeeping may have removed it just now.)
        DELETE FROM {schema}.letters l WHERE l.id = p_id AND l.expires_at <= v_now;
        EXIT WHEN EXISTS (SELECT FROM {schema}.letters l WHERE l.id = p_id);
    END LOOP;
END
$body$;


-- The record, its letter and the reservation: one transaction, or nothing.
CREATE FUNCTION {schema}.bury(
    p_now bigint, p_key text, p_owner text, p_fence bigint, p_attempt bigint,
    p_message_id text, p_message_type text, p_work_key text, p_payload_hash text, p_correlation_id text,
    p_causation_id text, p_subject text, p_worker text,
    p_keep bigint, p_error text, p_reservation text,
    p_id text, p_body bytea, l_message_type text, l_queue text, l_error_type text, l_group text, l_reason text,
    l_correlation_id text, l_subject text, l_message_id text, l_work_key text, l_causation_id text,
    OUT o_answer text, OUT o_state text, OUT o_letter_id text
) LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint;
    v_generation bigint;
    v_replays bigint;
BEGIN
    SELECT e.o_answer, e.o_state INTO o_answer, o_state FROM {schema}.ending(
        p_now, 'dead', p_key, p_owner, p_fence, p_attempt, p_message_id, p_message_type, p_work_key,
        p_payload_hash, p_correlation_id, p_causation_id, p_subject, p_worker) e;
    SELECT r.letter_id INTO o_letter_id FROM {schema}.records r WHERE r.store_key = p_key;
    IF o_answer <> 'ok' THEN
        RETURN;
    END IF;
    v_now := coalesce(p_now, {schema}.clock());
    UPDATE {schema}.records r
       SET state = 'dead', lease_until = 0, not_before = 0, exhausted = false, suspect = false, draining = false,
           slot = '', updated_at = v_now, expires_at = v_now + p_keep,
           generation = r.generation + 1, letter_id = p_id,
           last_error = CASE WHEN p_error <> '' THEN p_error ELSE r.last_error END
     WHERE r.store_key = p_key
    RETURNING r.generation, r.replays INTO v_generation, v_replays;
    IF p_reservation <> '' THEN
        DELETE FROM {schema}.reservations s WHERE s.store_key = p_reservation AND s.message_id = p_message_id;
    END IF;
    IF o_letter_id <> '' THEN
        UPDATE {schema}.letters l SET state = 'replayed', closed_at = v_now
         WHERE l.id = o_letter_id AND l.state = 'replaying';
    END IF;
    DELETE FROM {schema}.letters l WHERE l.id = p_id;
    PERFORM {schema}.put_letter(
        v_now, p_keep, p_id, p_body, l_message_type, l_queue, l_error_type, l_group, l_reason, l_correlation_id,
        l_subject, l_message_id, l_work_key, l_causation_id, p_key, v_generation, v_replays);
    o_letter_id := p_id;
END
$body$;


CREATE FUNCTION {schema}.get_letter(p_now bigint, p_id text) RETURNS SETOF {schema}.letters
LANGUAGE sql VOLATILE AS $body$
    SELECT * FROM {schema}.letters l WHERE l.id = p_id AND l.expires_at > coalesce(p_now, {schema}.clock())
$body$;


-- Written for the question at hand, so that the planner sees which facets are asked for and takes the index of one.
-- Before the first ANALYZE it may think that all matches are few and cheaper to sort (measured: 1 s instead of 1 ms).
CREATE FUNCTION {schema}.page_letters(
    p_now bigint, p_limit bigint, p_closed boolean, p_since bigint, p_until bigint, p_cursor_at bigint,
    p_cursor_id text, p_facets text[]
) RETURNS SETOF {schema}.letters LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $body$
DECLARE
    c_names CONSTANT text[] := '{message_type,queue,error_type,group,reason,correlation_id,subject,message_id}';
    v_query text := format('SELECT * FROM {schema}.letters l WHERE l.closed = %L AND l.expires_at > %L',
                           p_closed, coalesce(p_now, {schema}.clock()));
BEGIN
    FOR i IN 1 .. cardinality(c_names) LOOP
        IF p_facets[i] <> '' THEN
            v_query := v_query || format(
                ' AND hashtextextended(l.%1$I, 0) = hashtextextended(%2$L, 0) AND l.%1$I = %2$L',
                c_names[i], p_facets[i]);
        END IF;
    END LOOP;
    IF p_since IS NOT NULL THEN
        v_query := v_query || format(' AND l.failed_at >= %L', p_since);
    END IF;
    IF p_until IS NOT NULL THEN
        v_query := v_query || format(' AND l.failed_at < %L', p_until);
    END IF;
    IF p_cursor_id <> '' THEN
        v_query := v_query || format(' AND (l.failed_at, l.id) < (%L, %L)', p_cursor_at, p_cursor_id);
    END IF;
    RETURN QUERY EXECUTE v_query || format(' ORDER BY l.failed_at DESC, l.id DESC LIMIT %s', p_limit);
END
$body$;


-- "ok" comes with the letter as it is afterwards, any other answer with the state to name.
CREATE FUNCTION {schema}.replay_letter(
    p_now bigint, p_id text, p_by text, p_reason text, p_keep bigint,
    OUT o_answer text, OUT o_state text, OUT o_letter {schema}.letters
) LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint;
    v_key text;
    l {schema}.letters;
    r {schema}.records;
BEGIN
    LOOP
        SELECT t.store_key INTO v_key FROM {schema}.letters t WHERE t.id = p_id;
        SELECT * INTO r FROM {schema}.records t WHERE t.store_key = v_key FOR UPDATE;
        SELECT * INTO l FROM {schema}.letters t WHERE t.id = p_id FOR UPDATE;
        v_now := coalesce(p_now, {schema}.clock());
        IF l.id IS NULL OR l.expires_at <= v_now THEN
            o_answer := 'unknown'; o_state := '';
            RETURN;
        ELSIF l.closed THEN
            o_answer := 'closed'; o_state := l.state;
            RETURN;
        END IF;
        EXIT WHEN l.generation = 0;
        IF r.expires_at > v_now THEN
            IF r.generation <> l.generation OR r.state NOT IN ('dead', 'waiting') THEN
                o_answer := 'moved'; o_state := r.state;
                RETURN;
            END IF;
            EXIT;
        END IF;
        DELETE FROM {schema}.records t WHERE t.store_key = v_key AND t.expires_at <= v_now;
        INSERT INTO {schema}.records (
            store_key, state, message_id, message_type, key, correlation_id, causation_id, subject, generation,
            letter_id, created_at)
        VALUES (
            v_key, 'waiting', l.message_id, l.message_type, l.key, l.correlation_id, l.causation_id, l.subject,
            l.generation, l.id, v_now)
        ON CONFLICT (store_key) DO NOTHING;
        EXIT WHEN FOUND;
    END LOOP;

    IF l.generation <> 0 THEN
        UPDATE {schema}.records t
           SET state = 'waiting', lease_until = 0, not_before = 0, exhausted = false, suspect = false,
               draining = false, slot = '', updated_at = v_now, expires_at = v_now + p_keep,
               replays = l.replays + 1, attempts = 0, crashes = 0, interruptions = 0, owner = ''
         WHERE t.store_key = v_key;
    END IF;
    UPDATE {schema}.letters t SET state = 'replaying', closed_by = p_by, closed_reason = p_reason WHERE t.id = p_id
    RETURNING t.* INTO o_letter;
    o_answer := 'ok'; o_state := 'replaying';
END
$body$;


CREATE FUNCTION {schema}.mark_replayed(p_now bigint, p_id text, OUT o_marked boolean) LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint := coalesce(p_now, {schema}.clock());
BEGIN
    UPDATE {schema}.letters l
       SET state = 'replayed', closed_at = CASE WHEN l.state = 'replaying' THEN v_now ELSE l.closed_at END
     WHERE l.id = p_id AND l.state IN ('replaying', 'replayed') AND l.expires_at > v_now;
    o_marked := FOUND;
END
$body$;


CREATE FUNCTION {schema}.discard_letter(
    p_now bigint, p_id text, p_by text, p_reason text, OUT o_answer text, OUT o_state text
) LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint;
BEGIN
    SELECT l.state INTO o_state FROM {schema}.letters l WHERE l.id = p_id FOR UPDATE;
    v_now := coalesce(p_now, {schema}.clock());
    UPDATE {schema}.letters l SET state = 'discarded', closed_by = p_by, closed_reason = p_reason, closed_at = v_now
     WHERE l.id = p_id AND l.state IN ('open', 'replaying') AND l.expires_at > v_now;
    IF FOUND THEN
        o_answer := 'ok';
        RETURN;
    END IF;
    PERFORM FROM {schema}.letters l WHERE l.id = p_id AND l.expires_at > v_now;
    o_answer := CASE WHEN NOT FOUND THEN 'unknown' WHEN o_state = 'discarded' THEN 'again' ELSE 'closed' END;
    o_state := CASE WHEN FOUND THEN o_state ELSE '' END;
END
$body$;


-- One row per reason; the oldest letter's time is the same in each. What has expired and is not removed yet is in the
-- sum still, so it is taken off again: that reads no more than housekeeping has left behind.
CREATE FUNCTION {schema}.letter_stats(p_now bigint, OUT o_reason text, OUT o_depth bigint, OUT o_oldest bigint)
RETURNS SETOF record LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $body$
DECLARE
    v_now bigint := coalesce(p_now, {schema}.clock());
BEGIN
    PERFORM {schema}.fold();
    RETURN QUERY
    SELECT c.reason, sum(c.change)::bigint,
           (SELECT l.failed_at FROM {schema}.letters l WHERE NOT l.closed AND l.expires_at > v_now
             ORDER BY l.failed_at, l.id LIMIT 1)
      FROM (SELECT t.reason, t.change FROM {schema}.tallies t
            UNION ALL
            SELECT l.reason, -count(*) FROM {schema}.letters l
             WHERE l.expires_at <= v_now AND NOT l.closed GROUP BY l.reason) c
     GROUP BY c.reason HAVING sum(c.change) <> 0;
END
$body$;
