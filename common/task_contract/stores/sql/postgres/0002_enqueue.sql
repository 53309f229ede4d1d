-- Reservations. In all functions p_… comes in and o_… goes out; `p_now` is the tests' clock and NULL in production.
-- Each says in SQL what stores/transitions.py says in Python.
--
-- Order of locks, the same everywhere, so that no two verbs can wait for each other:
--   a slot's advisory lock → the record (several: by key) → the suspects' advisory lock → reservation → letter.
-- A claim knows its slot before it looks at its record and needs the count to stand still from then on, so that lock
-- comes first; whether it is a suspect only the record can tell, so that lock comes after it. Whoever holds the
-- suspects' lock waits for nothing more. No transaction takes two slots or two records, except a heartbeat (records, in
-- order of their keys) and housekeeping (which skips what is locked).

CREATE FUNCTION {schema}.clock() RETURNS bigint LANGUAGE sql VOLATILE AS $body$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
$body$;


CREATE FUNCTION {schema}.reserve(
    p_now bigint, p_key text, p_token text, p_message_id text, p_ttl bigint, p_payload_hash text, p_record_key text,
    p_take_over text,
    OUT o_outcome text, OUT o_message_id text, OUT o_token text, OUT o_state text
) LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint := coalesce(p_now, {schema}.clock());
    v_place {schema}.reservations;
    v_state text;
    v_holder text;
    v_hash text;
    v_mismatch boolean;
BEGIN
    SELECT r.state, r.message_id, r.payload_hash INTO v_state, v_holder, v_hash
      FROM {schema}.records r WHERE r.store_key = p_record_key AND r.expires_at > v_now;
    v_mismatch := coalesce(v_state <> 'dead' AND v_hash <> '' AND p_payload_hash <> '' AND v_hash <> p_payload_hash,
                           false);
    LOOP
        -- Write first, read on conflict; but the record's arguments may forbid the write.
        IF NOT v_mismatch THEN
            INSERT INTO {schema}.reservations (store_key, token, message_id, payload_hash, confirmed, expires_at)
            VALUES (p_key, p_token, p_message_id, p_payload_hash, false, v_now + p_ttl)
            ON CONFLICT (store_key) DO NOTHING;
            IF FOUND THEN
                o_outcome := 'won'; o_message_id := p_message_id; o_token := p_token; o_state := '';
                RETURN;
            END IF;
        END IF;
        SELECT * INTO v_place FROM {schema}.reservations s WHERE s.store_key = p_key FOR UPDATE;
        v_now := coalesce(p_now, {schema}.clock());
        IF v_place.expires_at > v_now THEN
            EXIT;
        ELSIF v_mismatch THEN
            o_outcome := 'mismatch'; o_message_id := v_holder; o_token := ''; o_state := v_state;
            RETURN;
        END IF;
        DELETE FROM {schema}.reservations s WHERE s.store_key = p_key AND s.expires_at <= v_now;
    END LOOP;

    o_message_id := v_place.message_id;
    o_state := coalesce(v_state, CASE WHEN v_place.confirmed THEN 'enqueued' ELSE 'pending' END);
    IF v_place.payload_hash <> '' AND p_payload_hash <> '' AND v_place.payload_hash <> p_payload_hash THEN
        o_outcome := 'mismatch'; o_token := '';
    ELSIF v_place.token = p_token OR (NOT v_place.confirmed AND v_place.token = p_take_over) THEN
        o_outcome := 'won'; o_token := p_token; o_state := '';
        IF NOT v_place.confirmed THEN
            UPDATE {schema}.reservations s
               SET token = p_token, payload_hash = p_payload_hash, expires_at = v_now + p_ttl
             WHERE s.store_key = p_key;
        END IF;
    ELSE
        o_outcome := CASE WHEN v_place.confirmed THEN 'duplicate' ELSE 'pending' END;
        o_token := v_place.token;
    END IF;
END
$body$;


CREATE FUNCTION {schema}.confirm(
    p_now bigint, p_key text, p_token text, p_message_id text, p_ttl bigint, p_payload_hash text, p_record_key text,
    p_until_done boolean,
    OUT o_confirmed boolean
) LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint := coalesce(p_now, {schema}.clock());
    v_place {schema}.reservations;
BEGIN
    UPDATE {schema}.reservations s
       SET message_id = p_message_id, payload_hash = p_payload_hash, confirmed = true, expires_at = v_now + p_ttl
     WHERE s.store_key = p_key AND s.token = p_token AND s.expires_at > v_now;
    o_confirmed := FOUND;
    IF o_confirmed THEN
        RETURN;
    END IF;

    -- Gone. An ending that is under way must come before or after this, or it would release nothing while we see
    -- nothing ended: hence the lock on the record, before that on the reservation.
    PERFORM FROM {schema}.records r WHERE r.store_key = p_record_key FOR SHARE;
    LOOP
        SELECT * INTO v_place FROM {schema}.reservations s WHERE s.store_key = p_key FOR UPDATE;
        v_now := coalesce(p_now, {schema}.clock());
        IF v_place.expires_at > v_now THEN
            o_confirmed := v_place.token = p_token;
        ELSE
            o_confirmed := NOT EXISTS (
                SELECT FROM {schema}.records r
                 WHERE r.store_key = p_record_key AND r.expires_at > v_now
                   AND (r.state = 'dead' OR (p_until_done AND r.state = 'done')) AND r.message_id = p_message_id);
        END IF;
        EXIT WHEN NOT o_confirmed;
        DELETE FROM {schema}.reservations s
         WHERE s.store_key = p_key AND (s.expires_at <= v_now OR s.token = p_token);
        INSERT INTO {schema}.reservations (store_key, token, message_id, payload_hash, confirmed, expires_at)
        VALUES (p_key, p_token, p_message_id, p_payload_hash, true, v_now + p_ttl)
        ON CONFLICT (store_key) DO NOTHING;
        EXIT WHEN FOUND;
    END LOOP;
END
$body$;


CREATE FUNCTION {schema}.release(p_now bigint, p_key text, p_token text, OUT o_released boolean)
LANGUAGE plpgsql AS $body$
BEGIN
    DELETE FROM {schema}.reservations s
     WHERE s.store_key = p_key AND s.token = p_token AND NOT s.confirmed
       AND s.expires_at > coalesce(p_now, {schema}.clock());
    o_released := FOUND;
END
$body$;


CREATE FUNCTION {schema}.free(p_now bigint, p_key text, p_message_id text, OUT o_freed boolean)
LANGUAGE plpgsql AS $body$
BEGIN
    DELETE FROM {schema}.reservations s
     WHERE s.store_key = p_key AND s.message_id = p_message_id AND s.expires_at > coalesce(p_now, {schema}.clock());
    o_freed := FOUND;
END
$body$;
